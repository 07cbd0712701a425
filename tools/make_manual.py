#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes kvterrace.1 and the completions for bash and zsh from what the command says of itself.

    tools/make_manual.py COMMAND FOLDER [DATA-FOLDER]

Everything comes from `COMMAND ... --help` and from `check-config --settings --json`, so that page,
completion and program cannot differ. Only the standard library is used.
"""

import json
import os
import re
import subprocess
import sys

# What comes behind `kvterrace profile quality` and gives the command another form of its own.
FORMS = {("profile", "quality"): (("--kv", "FILE"), ("--mixed",))}
FILE_ARGUMENTS = re.compile(r"(FILE|DIR|PREFIX)$")


class Option:
    def __init__(self, short, name, argument, text):
        self.short, self.name, self.argument, self.text = short, name, argument, text


class Page:
    """What one --help says: usage lines, the text above the options, the options, the rest."""

    def __init__(self, words, text):
        self.words = words
        self.usage, self.about, self.options, self.rest, self.commands = [], "", [], "", []
        blocks = re.split(r"\n\s*\n", text.strip("\n"))
        lines = blocks[0].split("\n")
        while lines and re.match(r"Usage: |  or: ", lines[0]):
            self.usage.append(re.sub(r"^(Usage:|  or:) +", "", lines.pop(0)))
        self.about = " ".join(lines)
        for block in blocks[1:]:
            self.take_block(block.strip("\n"))

    def take_block(self, block):
        if block.startswith("Commands:"):
            self.commands = re.findall(r"^  ([\w-]+) +(.*)$", block, re.M)
            return
        if block.startswith(("Mandatory or optional", "Exit codes:", "`COMMAND --help`")):
            return
        options = re.findall(r"^ +(?:-(\S), )?(?:--([\w-]+))?(?:=(\S+))?(?:  +| *$)(.*)$", block,
                             re.M)
        found = [Option(*option) for option in options if option[0] or option[1]]
        if found:
            self.options += [option for option in found if option.name not in ("help", "usage")]
        elif not re.match(r" \S.*:$", block):
            self.rest = (self.rest + "\n\n" + block).strip()


def ask(command, *words):
    environment = dict(os.environ, ARGP_HELP_FMT="rmargin=10000", LC_ALL="C")
    return subprocess.run([command, *words], check=True, stdout=subprocess.PIPE, text=True,
                          stdin=subprocess.DEVNULL, env=environment).stdout


def read_pages(command, words=()):
    """The page of these words, then those of its subcommands."""
    page = Page(words, ask(command, *words, "--help"))
    pages = [page]
    for more in FORMS.get(words, ()):
        pages.append(Page(words + more[:1], ask(command, *words, *more, "--help")))
    for name, _ in page.commands:
        pages += read_pages(command, words + (name,))
    return pages


def exit_codes(text):
    block = re.search(r"Exit codes:\n((?:  .*\n?)+)", text).group(1)
    return re.findall(r"^  (\d+) +(.*)$", block, re.M)


# ---- the manual page ----

def roff(text):
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return "\n".join("\\&" + line if line[:1] in (".", "'") else line for line in text.split("\n"))


def roff_options(options):
    out = []
    for option in options:
        names = [f"\\fB\\-{roff(option.short)}\\fR"] if option.short else []
        if option.name:
            names.append(f"\\fB\\-\\-{roff(option.name)}\\fR" +
                         (f"=\\fI{roff(option.argument)}\\fR" if option.argument else ""))
        out += [".TP", ", ".join(names), roff(option.text)]
    return out


def make_manual(pages, version, codes, data_folder):
    first = pages[0]
    out = ['.\\" SPDX-License-Identifier: Apache-2.0', '.\\" Written by tools/make_manual.py.',
           f'.TH KVTERRACE 1 "" "kvterrace {version}" "User Commands"', ".SH NAME",
           "kvterrace \\- where and in which form an LLM server's KV cache is kept", ".SH SYNOPSIS"]
    out += [f".B {roff(first.usage[0])}", ".SH DESCRIPTION", roff(first.about), ".SH COMMANDS"]
    for page in pages[1:]:
        out += [f'.SS "kvterrace {roff(" ".join(page.words))}"']
        for usage in page.usage:
            out += [".nf", f"\\fB{roff(usage)}\\fR", ".fi"]
        out += [".PP", roff(page.about)] + roff_options(page.options)
        for part in filter(None, page.rest.split("\n\n")):
            out += [".PP", roff(part)]
    out += [".SH EXIT STATUS"]
    for code, text in codes:
        out += [".TP", f"\\fB{code}\\fR", roff(text)]
    out += [".SH FILES", ".TP", f"\\fI{roff(data_folder)}\\fR",
            roff("profiles/ and reference_model/: curves, ladders, and a small model with texts. "
                 "The command looks here for relative paths that are not in its working folder."),
            ".SH SEE ALSO", roff("The documents in the folder doc/kvterrace beside those files: "
                                 "README.md, CONFIGURATION.md and the others.")]
    return "\n".join(out) + "\n"


# ---- completion ----

def choices_of(option, policies):
    """The words that an option's argument is taken from, "file", or None when it is free."""
    if not option.argument:
        return None
    if option.name == "policy":
        return policies
    if re.fullmatch(r"[a-z-]+(\|[a-z-]+)*", option.argument):
        return option.argument.split("|")
    return "file" if FILE_ARGUMENTS.search(option.argument) else None


def merged(pages):
    """Pages by the words that are commands; the forms of one are one."""
    result = {}
    for page in pages:
        words = tuple(word for word in page.words if not word.startswith("-"))
        commands, options = result.setdefault(words, ([], {}))
        commands += page.commands
        for option in page.options:
            options.setdefault(option.name or option.short, option)
    return result


def make_bash(pages, settings, policies):
    table = merged(pages)
    out = ["# SPDX-License-Identifier: Apache-2.0",
           "# bash completion for kvterrace; written by tools/make_manual.py.",
           "_kvterrace() {",
           '    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} at=""',
           '    local i words="" values=""',
           f'    local settings="{" ".join(name + "=" for name in settings)}"',
           "    # `--name=value` comes as three words.",
           '    [[ $word == "=" ]] && word=""',
           '    [[ $before == "=" ]] && before=${COMP_WORDS[COMP_CWORD-2]}',
           "    for ((i = 1; i < COMP_CWORD; i++)); do",
           '        case "$at/${COMP_WORDS[i]}" in']
    names = ["/" + "/".join(words) for words in table if words]
    out += [f"        {'|'.join(names)}) at+=/${{COMP_WORDS[i]}} ;;", "        esac", "    done",
            '    case "$at $before" in']
    for words, (_, options) in table.items():
        at = "".join("/" + word for word in words)
        for option in options.values():
            if not option.argument:
                continue
            names = ([f"-{option.short}"] if option.short else []) + (
                [f"--{option.name}"] if option.name else [])
            pattern = "|".join(f'"{at} {name}"' for name in names)
            choices = choices_of(option, policies)
            if option.name == "set":
                out += [f"    {pattern}) compopt -o nospace 2>/dev/null || :; values=$settings ;;"]
            elif choices == "file":
                out += [f"    {pattern}) values=files ;;"]
            elif choices is None:
                out += [f"    {pattern}) return ;;"]
            else:
                out += [f'    {pattern}) values="{" ".join(choices)}" ;;']
    files = 'mapfile -t COMPREPLY < <(compgen -f -- "$word")'
    out += ["    esac", "    if [[ $values == files ]]; then", f"        {files}", "        return",
            "    elif [[ $values ]]; then",
            '        mapfile -t COMPREPLY < <(compgen -W "$values" -- "$word")', "        return",
            "    fi", '    case "$at" in']
    for words, (commands, options) in table.items():
        at = "".join("/" + word for word in words)
        every = [name for name, _ in commands] + [f"--{option.name}" for option in options.values()
                                                  if option.name] + ["--help"]
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


def zsh_option(option, policies):
    names = ([f"-{option.short}"] if option.short else []) + (
        [f"--{option.name}" + ("=" if option.argument else "")] if option.name else [])
    action = ""
    if option.argument:
        choices = "setting" if option.name == "set" else choices_of(option, policies)
        action = ":" + zsh_text(option.argument) + ":" + (
            "_files" if choices == "file" else "_kvterrace_settings" if choices == "setting"
            else f"({' '.join(choices)})" if choices else " ")
    return [f"'{name}[{zsh_text(option.text)}]{action}'" for name in names]


def make_zsh(pages, settings, policies):
    out = ["#compdef kvterrace", "# SPDX-License-Identifier: Apache-2.0",
           "# zsh completion for kvterrace; written by tools/make_manual.py.", "",
           "_kvterrace_settings() {",
           f"    compadd -S '' -- {' '.join(name + '=' for name in settings)}", "}", "",
           "_kvterrace() {", '    local at="" i', "    local -a commands",
           "    for ((i = 2; i < CURRENT; i++)); do", '        case "$at/${words[i]}" in']
    table = merged(pages)
    names = ["/" + "/".join(words) for words in table if words]
    out += [f"        {'|'.join(names)}) at+=/${{words[i]}} ;;", "        esac", "    done",
            '    case "$at" in']
    for words, (commands, options) in table.items():
        at = "".join("/" + word for word in words)
        lines = [part for option in options.values()
                 for part in zsh_option(option, policies)]
        out += [f'    "{at}")']
        if commands:
            out += ["        commands=(" + " ".join(f"'{name}:{zsh_text(text)}'"
                                                    for name, text in commands) + ")",
                    "        _describe command commands"]
        out += ["        _arguments -S " + " \\\n            ".join(lines + ["'*: :_files'"]),
                "        ;;"]
    out += ["    esac", "}", "", '_kvterrace "$@"']
    return "\n".join(out) + "\n"


def main(command, folder, data_folder="share/kvterrace"):
    pages = read_pages(command)
    settings = json.loads(ask(command, "check-config", "--settings", "--json"))["settings"]
    names = [row["name"] for row in settings if "*" not in row["name"]]
    policies = next(row["choices"] for row in settings if row["name"] == "store.policy").split("|")
    version = ask(command, "--version").split()[1]
    os.makedirs(folder, exist_ok=True)
    for name, text in (
            ("kvterrace.1", make_manual(pages, version, exit_codes(ask(command, "--help")),
                                        data_folder)),
            ("kvterrace.bash", make_bash(pages, names, policies)),
            ("_kvterrace", make_zsh(pages, names, policies))):
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            file.write(text)


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    main(*sys.argv[1:])
