#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the manual pages of the command and of its settings, the completions for bash and zsh, and
docs/CONFIGURATION.md's tables from the command's own tables.

    tools/make_manual.py COMMAND FOLDER [DATA-FOLDER]

Everything comes from `COMMAND --help --json` and `COMMAND settings --json`, so that page,
completion and program cannot differ. CONFIGURATION.md is docs/CONFIGURATION.md with its tables of
settings written anew: after a change of the settings, copy it there. Only the standard library is
used.
"""

import json
import os
import re
import subprocess
import sys


def ask(command, *words):
    return json.loads(subprocess.run([command, *words, "--json"], check=True, text=True,
                                     stdout=subprocess.PIPE, stdin=subprocess.DEVNULL).stdout)


def words_of(page):
    """What comes behind the program's name."""
    return tuple(page["name"].split()[1:])


# ---- the manual page ----

def roff(text):
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return "\n".join("\\&" + line if line[:1] in (".", "'") else line for line in text.split("\n"))


def roff_options(options):
    out = []
    for option in options:
        names = [f"\\fB\\-{roff(option['letter'])}\\fR"] if option["letter"] else []
        names.append(f"\\fB\\-\\-{roff(option['name'])}\\fR" +
                     (f"=\\fI{roff(option['argument'])}\\fR" if option["argument"] else ""))
        out += [".TP", ", ".join(names), roff(option["text"])]
    return out


def make_manual(table, data_folder):
    first, *pages = table["commands"]
    out = ['.\\" SPDX-License-Identifier: Apache-2.0', '.\\" Written by tools/make_manual.py.',
           f'.TH KVTERRACE 1 "" "kvterrace {table["version"]}" "User Commands"', ".SH NAME",
           "kvterrace \\- where and in which variant an LLM server's KV cache is kept",
           ".SH SYNOPSIS"]
    out += [f".B {roff(first['usage'][0])}", ".SH DESCRIPTION", roff(first["about"]),
            ".SH COMMANDS"]
    for page in pages:
        out += [f'.SS "{roff(page["name"])}"']
        for usage in page["usage"]:
            out += [".nf", f"\\fB{roff(usage)}\\fR", ".fi"]
        out += [".PP", roff(page["about"])] + roff_options(page["options"])
        for part in filter(None, (page["details"] or "").split("\n\n")):
            out += [".PP", roff(part)]
        out += [".PP", "Example:", ".nf", roff(page["example"]), ".fi"]
    out += [".SH EXIT STATUS"]
    for code, text in table["exit_codes"].items():
        out += [".TP", f"\\fB{code}\\fR", roff(text)]
    out += [".PP", roff("With --json an error is a document on standard output too: schema "
                        "kvterrace-error-1, with status, message, and file and line where the "
                        "error has them.")]
    out += [".SH FILES", ".TP", f"\\fI{roff(data_folder)}\\fR",
            roff("Under another prefix, share/kvterrace of that prefix. profiles/ and "
                 "reference_model/: curves, ladders, and a small model with texts. The command "
                 "looks here for relative paths that are not in its working folder."),
            ".SH SEE ALSO", "kvterrace(5)", ".PP",
            roff("README.md in the folder doc/kvterrace beside those files, and "
                 "docs/ in it: GUIDE.md, CONFIGURATION.md and the others.")]
    return "\n".join(out) + "\n"


def make_settings_manual(table, settings):
    """kvterrace(5): every setting, by section."""
    out = ['.\\" SPDX-License-Identifier: Apache-2.0', '.\\" Written by tools/make_manual.py.',
           f'.TH KVTERRACE 5 "" "kvterrace {table["version"]}" "File Formats"', ".SH NAME",
           "kvterrace \\- settings of a store, of a simulation and of what they run on",
           ".SH DESCRIPTION",
           roff("A file of settings is INI text: [section], then name = value; a comment begins "
                "with ; or #, behind a value with ; alone. Sizes take B, kB, MB, GB, TB and KiB, "
                "MiB, GiB, TiB; times ns, us, ms, s, min, h; rates a size and /s. A name that "
                "nothing knows, and a setting without effect, are errors. `kvterrace check-config "
                "FILE` says what would be refused.")]
    section = None
    for row in fold_tiers(settings):
        if row["name"].rpartition(".")[0] != section:
            section = row["name"].rpartition(".")[0]
            out += [f'.SH "[{roff(section.replace("*", "NAME"))}]"']
        kind = row["choices"].replace("|", ", ") if row["choices"] else row["kind"]
        facts = [kind + (f", {row['range']}" if row["range"] else ""),
                 f"default {row['default']}" if row["default"] else "no default"]
        if row["effect"]:
            facts.append("has an effect with " + row["effect"].replace("|", " or "))
        name = row["name"].rpartition(".")[2]
        out += [".TP", f"\\fB{roff(name)}\\fR ({roff('; '.join(facts))})", roff(row["text"])]
    return "\n".join(out + [".SH SEE ALSO", "kvterrace(1)"]) + "\n"


# ---- completion ----

def values_of(setting):
    """The words that a setting is one of, or none."""
    return ["yes", "no"] if setting["kind"] == "switch" else (setting["choices"] or "").split("|")


def choices_of(option, words):
    """The words that an option's argument is taken from, "file", or None when it is free."""
    if option["name"] in words:
        return words[option["name"]]
    if option["choices"]:
        return option["choices"].split("|")
    return "file" if option["file"] else None


def sections_of(settings):
    return sorted({name.rpartition(".")[0].removesuffix(".*") for name in settings})


def by_values(settings):
    """{values: the settings that have them}"""
    found = {}
    for name, values in settings.items():
        if values != [""]:
            found.setdefault(" ".join(values), []).append(name)
    return found


def make_bash(pages, settings, words):
    out = ["# SPDX-License-Identifier: Apache-2.0",
           "# bash completion for kvterrace; written by tools/make_manual.py.",
           "_kvterrace() {",
           '    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} at=""',
           '    local i words="" values="" list="" front=""',
           '    local settings="' +
           " ".join(name + "=" for name in settings if "*" not in name) + '"',
           "    # `--name=value` comes as three words, and so does the value of a setting.",
           '    [[ $word == "=" ]] && word=""',
           '    [[ $before == "=" ]] && before=${COMP_WORDS[COMP_CWORD-2]}',
           '    case "$before" in']
    for values, names in by_values(settings).items():
        out += [f"    {'|'.join(names)}) values=\"{values}\" ;;"]
    out += ["    esac",
           "    for ((i = 1; i < COMP_CWORD; i++)); do",
           '        case "$at/${COMP_WORDS[i]}" in']
    names = ["/" + "/".join(words_of(page)) for page in pages if words_of(page)]
    out += [f"        {'|'.join(names)}) at+=/${{COMP_WORDS[i]}} ;;", "        esac", "    done",
            '    case "$at $before" in']
    for page in pages:
        at = "".join("/" + word for word in words_of(page))
        for option in page["options"]:
            if not option["argument"]:
                continue
            names = ([f"-{option['letter']}"] if option["letter"] else []) + [f"--{option['name']}"]
            pattern = "|".join(f'"{at} {name}"' for name in names)
            choices = choices_of(option, words)
            if option["name"] == "set":
                out += [f"    {pattern}) compopt -o nospace 2>/dev/null || :; values=$settings ;;"]
            elif choices == "file":
                out += [f"    {pattern}) values=files ;;"]
            elif choices is None:
                out += [f"    {pattern}) return ;;"]
            else:
                more = " list=yes" if option["name"] == "policy" else ""
                out += [f'    {pattern}) values="{" ".join(choices)}"{more} ;;']
    files = 'mapfile -t COMPREPLY < <(compgen -f -- "$word")'
    out += ["    esac", "    if [[ $values == files ]]; then", f"        {files}", "        return",
            "    elif [[ $values ]]; then",
            '        [[ $list && $word == *,* ]] && front=${word%,*}, && word=${word##*,}',
            '        mapfile -t COMPREPLY < <(compgen -P "$front" -W "$values" -- "$word")',
            "        return",
            "    fi", '    case "$at" in']
    for page in pages:
        at = "".join("/" + word for word in words_of(page))
        every = page["commands"] + [f"--{option['name']}" for option in page["options"]]
        if page["commands"]:
            every += ["--help", "--version", "help", "version"]
        if page["operands"] == "[SECTION]":
            every += sections_of(settings)
        out += [f'    "{at}") words="{" ".join(every)}" ;;']
    out += ["    esac", '    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")',
            "    # Where no command is to be chosen a file may come.",
            '    [[ $word == -* || ${#COMPREPLY[@]} -gt 0 ]] ||',
            f"        {files}", "}",
            "complete -F _kvterrace kvterrace"]
    return "\n".join(out) + "\n"


def zsh_text(text):
    return re.sub(r"([\[\]:'\\])", lambda match: "'\\''" if match.group() == "'"
                  else "\\" + match.group(), text)


def zsh_option(option, words):
    names = ([f"-{option['letter']}"] if option["letter"] else []) + [
        f"--{option['name']}" + ("=" if option["argument"] else "")]
    action = ""
    if option["argument"]:
        choices = "setting" if option["name"] == "set" else choices_of(option, words)
        action = ":" + zsh_text(option["argument"]) + ":" + (
            f"_values -s , policy {' '.join(choices)}" if option["name"] == "policy" else
            "_files" if choices == "file" else "_kvterrace_settings" if choices == "setting"
            else f"({' '.join(map(zsh_text, choices))})" if choices else " ")
    return [f"'{name}[{zsh_text(option['text'])}]{action}'" for name in names]


def make_zsh(pages, settings, words):
    out = ["#compdef kvterrace", "# SPDX-License-Identifier: Apache-2.0",
           "# zsh completion for kvterrace; written by tools/make_manual.py.", "",
           "_kvterrace_settings() {",
           "    if ! compset -P '*='; then",
           "        compadd -S '' -- " +
           " ".join(name + "=" for name in settings if "*" not in name),
           "        return", "    fi", '    case "${${IPREFIX%=}##*=}" in']
    for values, names in by_values(settings).items():
        out += [f"        {'|'.join(names)}) compadd -- {values} ;;"]
    out += ["    esac", "}", "", "_kvterrace() {", '    local at="" i', "    local -a commands",
           "    for ((i = 2; i < CURRENT; i++)); do", '        case "$at/${words[i]}" in']
    summaries = {words_of(page): page["summary"] for page in pages}
    names = ["/" + "/".join(words_of(page)) for page in pages if words_of(page)]
    out += [f"        {'|'.join(names)}) at+=/${{words[i]}} ;;", "        esac", "    done",
            '    case "$at" in']
    for page in pages:
        at = "".join("/" + word for word in words_of(page))
        lines = [part for option in page["options"] for part in zsh_option(option, words)]
        out += [f'    "{at}")']
        if page["commands"]:
            out += ["        commands=(" +
                    " ".join(f"'{name}:{zsh_text(summaries[words_of(page) + (name,)])}'"
                             for name in page["commands"]) + ")",
                    "        _describe command commands"]
        rest = (f"'*: :({' '.join(sections_of(settings))})'" if page["operands"] == "[SECTION]"
                else "'*: :_files'")
        out += ["        _arguments -S " + " \\\n            ".join(lines + [rest]),
                "        ;;"]
    out += ["    esac", "}", "", '_kvterrace "$@"']
    return "\n".join(out) + "\n"


# ---- the page of settings ----

SETTINGS_PAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "docs",
                             "CONFIGURATION.md")


def settings_table(settings):
    rows = ["| setting | kind | default | has an effect with | meaning |", "|---|---|---|---|---|"]
    for row in settings:
        kind = row["choices"].replace("|", ", ") if row["choices"] else row["kind"]
        kind += ", " + row["range"] if row["range"] else ""
        default = f"`{row['default']}`" if row["default"] else "-"
        effect = row["effect"].replace("|", " or ") or "-"
        rows.append(f"| `{row['name']}` | {kind} | {default} | {effect} | {row['text']} |")
    return "\n".join(rows)


def fold_tiers(settings):
    """A row that the tiers have alike stands once, in the section tier.NAME."""
    def folded(row):
        return {field: re.sub(r"\btier([.=])(hbm|dram|ssd)\b", r"tier\1NAME", text or "")
                for field, text in row.items()}

    alike = [folded(row) for row in settings]
    kept, rows = set(), []
    for row, one in zip(settings, alike):
        if not row["name"].startswith("tier.") or alike.count(one) != 3:
            rows.append(row)
        elif one["name"] not in kept:
            kept.add(one["name"])
            rows.append({**row, **one})
    return rows


def make_settings(page, settings):
    """The page with the table below each heading `## [SECTION]` written anew."""
    sections = {}
    for row in fold_tiers(settings):
        sections.setdefault(row["name"].rpartition(".")[0].replace("*", "NAME"), []).append(row)
    for section, rows in sections.items():
        page, count = re.subn(
            rf"(?m)(^## \[{re.escape(section)}\]\n\n)(?:\|.*\n)*",
            lambda match, rows=rows: match.group(1) + settings_table(rows) + "\n", page)
        if count != 1:
            sys.exit(f"docs/CONFIGURATION.md: {count} headings \"## [{section}]\" instead of one")
    return page


def main(command, folder, data_folder="share/kvterrace"):
    table, settings = ask(command, "--help"), ask(command, "settings")["settings"]
    pages = table["commands"]
    values = {row["name"]: values_of(row) for row in settings}
    # Of options whose argument has no list of its own.
    words = {"policy": table["policies"], "workload": ["poisson"],
             "variant": table["variants"]}
    os.makedirs(folder, exist_ok=True)
    with open(SETTINGS_PAGE, encoding="utf-8") as file:
        page = make_settings(file.read(), settings)
    for name, text in (("CONFIGURATION.md", page),
                       ("kvterrace.1", make_manual(table, data_folder)),
                       ("kvterrace.5", make_settings_manual(table, settings)),
                       ("kvterrace.bash", make_bash(pages, values, words)),
                       ("_kvterrace", make_zsh(pages, values, words))):
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            file.write(text)


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    main(*sys.argv[1:])
