/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sequence_explain.c - says why a step under way brings the pages that it brings: one line for the
 * head, then one for each page that is resident or read, with its weight, the thresholds of its
 * variants and what came of it.
 *
 * Thread rule: the sequence's thread.
 */
#include "base/number/number.h"
#include "sequence.h"

enum { LINE_BYTES = 1024 };

static void add_pair(text *out, const char *words, uint64_t number)
{
    text_add(out, words);
    text_add_number(out, number);
}

static void add_value(text *out, const char *words, double value)
{
    text_add(out, words);
    text_add_double(out, value);
}

static void explain_head(const kvt_sparse *s, const sparse_unit *unit, const sparse_head_work *head,
                         uint32_t layer, uint32_t h, text *out)
{
    double brought = 0.0, absent = 0.0;
    for (uint32_t page = 0; page < sparse_unit_pages(unit); page++)
        *(head->variant[page] != PAGES_ABSENT ? &brought : &absent) +=
            (double)head->work.page[page];
    add_pair(out, "layer ", layer);
    add_pair(out, " head ", h);
    add_pair(out, ": pages ", sparse_unit_pages(unit));
    add_pair(out, " clusters ", unit->index.clusters);
    add_pair(out, " in full ", unit->index.full);
    add_pair(out, "; resident tokens ",
             unit->sinks.tokens + unit->local.tokens + unit->tail.joining.open_tokens);
    if (head->budget_bytes == PAGES_BUDGET_ALL)
        text_add(out, "; budget all");
    else
        add_pair(out, "; budget ", head->budget_bytes);
    add_pair(out, " reads ", head->plan.bytes);
    add_value(out, " theta ", head->plan.theta);
    add_value(out, " weight brought ", brought);
    add_value(out, " absent ", absent);
    add_pair(out, "; window ", unit->window.used_bytes);
    add_pair(out, " of ", unit->window.capacity_bytes);
    if (s->hbm.location != NULL) add_pair(out, ", in HBM up to ", sparse_hbm_unit_bytes(unit));
    if (head->singles.chosen != NULL) {
        add_pair(out, "; single tokens ", head->singles.count);
        add_pair(out, " of ", head->singles.tokens);
    }
    text_add(out, s->options.estimate ? "; absent pages are estimated\n" : "; no estimate\n");
}

/* The state of a page in the step, in a word. */
static const char *state_of(const sparse_unit *unit, const kvt_sparse_step *step,
                            const sparse_head_work *head, uint32_t page)
{
    const bool arena = unit->place[page] != SPARSE_NOT_HELD || unit->slot == NULL;
    const char *resident = arena                              ? ", resident in DRAM"
                           : unit->slot[page] & SPARSE_MOVING ? ", resident, on its way to HBM"
                                                              : ", resident in HBM";
    if (step->state != STEP_WAITED)
        return head->variant[page] > head->coming[page] ? ", being read"
               : head->coming[page] > head->held[page]  ? ", read by a hint"
                                                        : resident;
    for (uint32_t i = 0; i < head->lost_count; i++)
        if (head->lost[i] == page) return ", lost";
    return head->items[page] != NULL ? ", read" : resident;
}

kvt_status kvt_sparse_explain(kvt_sparse *s, uint32_t layer, uint32_t h, char *to, size_t size,
                              size_t *length_out)
{
    text out;
    char line[LINE_BYTES];
    if (s == NULL || (to == NULL && size > 0) || length_out == NULL ||
        layer >= s->options.layout.layers || h >= s->options.layout.kv_heads)
        return KVT_E_ARGUMENT;
    if (!scratch_is_ours(s->store)) return KVT_E_STATE;
    text_start(&out, to, size);
    *length_out = 0;
    const kvt_sparse_step *step = sparse_step_find(s, layer);
    if (step == NULL) return KVT_MISS;
    const sparse_unit *unit = sparse_unit_of(s, layer, h);
    const sparse_head_work *head = &step->heads[h];
    const pages_problem problem =
        sparse_head_problem(s, unit, head->work.page, head->coming, head->budget_bytes);
    if (problem.count > 0) explain_head(s, unit, head, layer, h, &out);
    for (uint32_t page = 0; page < problem.count; page++) {
        bool lost = false;
        for (uint32_t i = 0; i < head->lost_count; i++)
            lost = lost || head->lost[i] == page;
        if (head->variant[page] == PAGES_ABSENT && !lost) continue;
        (void)pages_explain(&problem, head->variant, &head->plan, page, line, sizeof line);
        text_add(&out, line);
        uint32_t own;
        const sparse_table *table = sparse_unit_table(unit, page, &own);
        add_pair(&out, ", copies ", table->copies[own].member == TIERS_MEMBERS_MAX ? 1 : 2);
        text_add(&out, state_of(unit, step, head, page));
        text_add(&out, "\n");
    }
    *length_out = out.length;
    return KVT_OK;
}
