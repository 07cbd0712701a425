/* SPDX-License-Identifier: Apache-2.0 */
/*
 * settings.c - the table of every setting: name, kind, default, choices, one line of explanation.
 *
 * This is the only place where a setting is declared; config.c checks values against it, the
 * command prints its help from it, and the tables of docs/CONFIGURATION.md are made from it. To add
 * a setting: add a row here and a row in the table of the struct that it fills (settings_fields.h),
 * build, and copy build/manual/CONFIGURATION.md to docs/. Constant data; any thread.
 */
#include "config_values.h"

#include <kvterrace/config.h>

#include <float.h>
#include <math.h>

/* A row; behind the text of a number may stand the least and the most that it may be. */
/* clang-format off */
#define ROW(type, key, usual, list, when, ...)                                                     \
    {.name = key, .kind = KVT_SETTING_##type, .standard = usual, .choices = list, .effect = when,  \
     .text = __VA_ARGS__}
/* clang-format on */
#define TEXT(key, usual, when, text)         ROW(TEXT, key, usual, NULL, when, text)
#define CHOICE(key, usual, list, when, text) ROW(TEXT, key, usual, list, when, text)
#define BYTES(key, usual, when, ...)         ROW(BYTES, key, usual, NULL, when, __VA_ARGS__)
#define RATE(key, usual, when, ...)          ROW(RATE, key, usual, NULL, when, __VA_ARGS__)
#define SECONDS(key, usual, when, ...)       ROW(SECONDS, key, usual, NULL, when, __VA_ARGS__)
#define NUMBER(key, usual, when, ...)        ROW(NUMBER, key, usual, NULL, when, __VA_ARGS__)
#define COUNT(key, usual, when, ...)         ROW(COUNT, key, usual, NULL, when, __VA_ARGS__)
#define SWITCH(key, usual, when, text)       ROW(SWITCH, key, usual, NULL, when, text)

/* Conditions that several rows have. */
#define ALWAYS ""
#define FIXED_POLICIES                                                                             \
    "store.policy=lru|lru-leaf|fifo|lru-twice|lfu|gdsf|sieve|s3fifo|w-tinylfu|pensieve"
#define WEIGHING_POLICIES "store.policy=utility|adaptcache"
#define LADDER            "store.ladder=calibrated"
#define DURABLE           "store.catalog and device.?.tier=ssd"
#define LENT              "serve.socket"
#define VALKEY            "remote.*.backend=valkey"
#define PRESENT(tier)     "tier." tier ".capacity or device.?.tier=" tier

/* The settings of one tier; the last four are the simulator's model of the whole tier. */
#define TIER(tier)                                                                                 \
    BYTES("tier." tier ".capacity", NULL, ALWAYS,                                                  \
          "bytes of records in this tier; absent: what its devices hold, or no such tier"),        \
        BYTES("tier." tier ".unit", "256KiB", PRESENT(tier), "stripe unit, a multiple of 4 KiB"),  \
        CHOICE("tier." tier ".placement", "proportional",                                          \
               "proportional|equal|round_robin|tensor|entry", "2 device.?.tier=" tier,             \
               "how records lie on the devices"),                                                  \
        TEXT("tier." tier ".slots", NULL, PRESENT(tier),                                           \
             "sizes of places made ahead, with commas: FORM@TOKENS of store.ladder_layout, as "    \
             "planes:k4v4,g64@256, or bytes of a record; absent: none"),                           \
        SWITCH("tier." tier ".reweigh", "yes", "2 device.?.tier=" tier,                            \
               "shares follow the bandwidth that devices achieve; no: as at open"),                \
        RATE("tier." tier ".rebalance_rate", "32MB/s",                                             \
             "2 device.?.tier=" tier " and tier." tier ".placement=proportional|tensor",           \
             "bytes per second that lay hot objects out anew when devices drifted; 0: none"),      \
        RATE("tier." tier ".read_bandwidth", NULL, PRESENT(tier),                                  \
             "simulation: read bandwidth of the tier"),                                            \
        RATE("tier." tier ".write_bandwidth", NULL, PRESENT(tier),                                 \
             "simulation: write bandwidth of the tier"),                                           \
        SECONDS("tier." tier ".latency", NULL, PRESENT(tier),                                      \
                "simulation: fixed seconds of one request"),                                       \
        TEXT("tier." tier ".devices", NULL, "store.profile and " PRESENT(tier),                    \
             "simulation: the profile's devices that make up the tier, by name with commas; "      \
             "absent: all that were measured of this tier")

static const kvt_setting settings_table[] = {
    TEXT("store.catalog", NULL, ALWAYS, "SQLite file that lets SSD entries survive a restart"),
    TEXT("store.profile", NULL, ALWAYS, "SQLite file with this machine's measurements"),
    SWITCH("store.profile_foreign", "no", "store.profile",
           "accept figures of another host, device or library version, and imported ones"),
    SWITCH("store.format", "no", "device.?.backend=file|nvme",
           "accept devices that carry other bytes, which are lost"),
    CHOICE("store.policy", "utility", "none|lru|utility", ALWAYS, "policy that decides placement"),
    CHOICE("store.variant", "raw", "raw|lossless", FIXED_POLICIES,
           "variant that the lru policies store"),
    SWITCH("store.lossless", "yes", WEIGHING_POLICIES,
           "offer the lossless codec to the utility policy"),
    CHOICE("store.ladder", "none", "none|calibrated", ALWAYS,
           "lossy variants: none, or those of the calibration in store.profile"),
    TEXT("store.ladder_layout", NULL,
         LADDER " or tier.hbm.slots or tier.dram.slots or tier.ssd.slots",
         "layers, KV heads and head_dim of the entries that may be lossy, as 32x8x128:bf16; with "
         ",drop behind it they may lose tokens, too, where an entry's layout says so; with ,one "
         "they "
         "are of K alone and of V alone"),
    TEXT("store.ladder_model", NULL, LADDER,
         "model that was calibrated, by its name in the profile; absent: any; any-8-bit: none, and "
         "planes of 8 bits are taken with the largest bounds of all models in the profile"),
    TEXT("store.ladder_class", NULL, LADDER, "class of texts that was calibrated on; absent: any"),
    NUMBER("store.loss_limit", "0.01", LADDER " or replay.ladder",
           "with a ladder: no variant whose upper confidence bound of loss passes this", 0, 1),
    NUMBER("store.entry_loss_limit", "1", LADDER " or replay.ladder",
           "with a ladder: no variant in which a tenth of the entries may lose more; 1: no limit",
           DBL_MIN, 1),
    SWITCH("store.learn", "yes", "store.profile",
           "keep what is learned in store.profile, where that may be written"),
    SECONDS("store.learn_interval", "300", "store.profile and store.learn",
            "between two such notes; at close, too", DBL_MIN, 1e9),
    NUMBER("store.alpha_prefills", "10", WEIGHING_POLICIES " and !store.alpha",
           "prefills of its context that 1.0 of a request's quality is worth: with 10, 1 % of "
           "quality is worth 10 % of a prefill",
           0, 1e9),
    SECONDS("store.alpha", "0", WEIGHING_POLICIES,
            "seconds of delay that 1.0 of a request's quality is worth; 0: store.alpha_prefills"),
    NUMBER("store.hysteresis", "1.25", "store.policy=utility",
           "a move must gain this many times its cost"),
    CHOICE("store.holes", "contiguous", "contiguous|mixed", "store.policy=utility",
           "contiguous: an entry is useless without its ancestors; mixed: holes are recomputed"),
    NUMBER("store.high_watermark", "0.995", "store.policy=utility or store.catalog",
           "background work makes room above this tier share", 0, 1),
    NUMBER("store.low_watermark", "0.99", "store.policy=utility", "and stops at this one", 0, 1),
    BYTES("store.staging", "256MiB", ALWAYS, "memory for records in motion", 1 << 20, INFINITY),
    BYTES("store.put_staging", NULL, ALWAYS,
          "entries that were put and are not written yet; 0: a put returns when it is written; "
          "absent: a 32nd of DRAM, 256 MiB to 8 GiB; at most an eighth of the smallest tier"),
    SECONDS("store.put_backlog", "10", ALWAYS,
            "writes that may wait for a tier; more is refused; 0: no bound", 0, 1e9),
    CHOICE("store.io_order", "slack", "reads_first|fifo|round_robin|table|slack", ALWAYS,
           "order in which a device begins requests; slack: writes make no layer of an announced "
           "pass late, and without a pass it is reads_first"),
    SECONDS("store.write_grain", "0.002", "store.io_order=slack",
            "a read that nobody foresaw waits for writes no longer; for up to eight of it where "
            "threads wake up late",
            0.0001, 1),
    SECONDS("store.write_patience", "10", "store.io_order=table|slack",
            "writes that waited for so long get a twentieth of a device's time", 0.001, 3600),
    SECONDS("store.tick", "0.05", ALWAYS,
            "pause between background rounds; 0: no background thread", 0, 3600),
    RATE("store.move_rate", "0", "store.tick",
         "bytes per second that background moves may write; 0: no bound"),
    COUNT("store.moves_per_tick", "64", "store.tick", "moves in one background round"),
    COUNT("store.seed", "1", "store.policy=utility",
          "seed of policies that draw and of device labels in tests"),
    SECONDS("store.get_deadline", "0", ALWAYS, "a longer get is a miss; 0: no deadline", 0, 1e9),
    SWITCH("store.copies", "yes", DURABLE,
           "with a catalog: what is promoted stays on SSD, too, while nothing else needs the room"),
    COUNT("store.handle_seed", "0", ALWAYS,
          "fixes the hash that names entries to the policy, for runs that repeat; 0: a secret"),
    SWITCH("store.follow_symlinks", "no", "store.catalog or device.?.backend=file",
           "the catalog and members may be symbolic links; no: only root's to block devices"),
    SWITCH("store.follow", "no", "store.catalog and device.?.backend=file",
           "reads what another process's store has on SSD, and changes nothing"),
    SWITCH("store.serve_early", "no", DURABLE,
           "serves entries on SSD while it is being opened; other calls wait"),
    SECONDS("store.close_deadline", "20", DURABLE " and store.copies",
            "closing writes back what is in HBM and DRAM alone for so long; 0: not at all", 0, 1e9),
    RATE("store.persist_rate", "32MB/s", DURABLE " and store.copies and store.tick",
         "bytes per second that the background writes back into free room on SSD; 0: none"),
    SECONDS("store.scrub_period", "86400", DURABLE " and store.tick",
            "each record on SSD is verified once within it, by a get or in the background; 0: by "
            "gets alone",
            0, 1e9),
    NUMBER("store.scrub_share", "0.01", DURABLE " and store.tick and store.scrub_period",
           "of each SSD device's read bandwidth that the background verifies with", 0.0001, 1),
    COUNT("store.scrub_faults", "16", DURABLE " and store.tick and store.scrub_period",
          "damaged places on one device at which it is drained; 0: never"),
    TEXT("store.watch_path", NULL, ALWAYS,
         "a file that the store writes its metrics and last operations to; absent: none"),
    SECONDS("store.watch_interval", "10", "store.watch_path", "between two such writes", 0.01, 1e9),

    BYTES("gpu.scratch", "256MiB", ALWAYS,
          "memory of each GPU that the store's kernels work in, taken at their first use, or by "
          "halves what the engine has left; 0: no kernels, the CPU codes for them",
          0, UINT64_C(1) << 33),
    BYTES("gpu.pinned", "256MiB", ALWAYS,
          "memory of the host that stays pinned for each GPU while no copy uses it", 0,
          UINT64_C(1) << 33),

    TIER("hbm"),
    SWITCH("tier.hbm.emulated", "no", "tier.hbm.capacity and !device.?.tier=hbm",
           "a tier without devices is memory of the host instead of a GPU's"),
    TIER("dram"),
    TIER("ssd"),
    NUMBER("tier.ssd.mix", "0", "replay.layered",
           "simulation: share of the drives' speed lost while they read and write at once", 0,
           0.99),
    BYTES("tier.remote.capacity", NULL, ALWAYS,
          "simulation: bytes of the tier that all hosts share; absent: there is none"),
    COUNT("tier.remote.nodes", "4", "tier.remote.capacity",
          "simulation: nodes that the shared tier is spread over", 1, 64),
    RATE("tier.remote.node_bandwidth", "3125MB/s", "tier.remote.capacity",
         "simulation: bytes per second of one node, which reads and writes share", 1, INFINITY),
    RATE("tier.remote.host_bandwidth", "3125MB/s", "tier.remote.capacity",
         "simulation: bytes per second of one host's link, in each direction", 1, INFINITY),
    SECONDS("tier.remote.latency", "0.0002", "tier.remote.capacity",
            "simulation: a round trip to a node", 0, 3600),
    CHOICE("tier.remote.publish", "all", "all|second_use",
           "tier.remote.capacity or remote.?.address",
           "which entries are copied to the shared tier: every one, or those used twice"),
    RATE("tier.remote.write_rate", "0", "tier.remote.capacity or remote.?.address",
         "bytes per second that one host publishes at most; 0: no bound"),

    TEXT("tier.remote.namespace", NULL, "remote.?.address",
         "what all hosts of an engine agree on beside keys: model, revision, how keys are made; 1 "
         "to 255 bytes; required with [remote.NAME]"),
    SECONDS("tier.remote.ttl", "0", "remote.?.address",
            "life of published objects; 0: the engine's eviction alone", 0, 1e9),
    SECONDS("tier.remote.hint_ttl", "10", "remote.?.address",
            "how long an answer about a key counts", 0, 1e9),
    SWITCH("tier.remote.feed", "no", "remote.?.address",
           "follow the engine's invalidations; for up to 32 hosts"),
    SECONDS("tier.remote.deadline", "0.05", "remote.?.address",
            "a get from another host that takes longer is a miss", 1e-4, 60),
    BYTES("tier.remote.chunk", "1048560", "remote.?.address", "bytes of an object", 4096, 8 << 20),
    COUNT("tier.remote.queue", "4096", "remote.?.address", "entries that may wait", 1, 1048576),

    CHOICE(
        "remote.*.backend", "valkey", "valkey|mooncake|memory", ALWAYS,
        "the engine: Valkey or Redis, Mooncake Store, or one in this process's memory, for trials"),
    TEXT("remote.*.address", NULL, ALWAYS,
         "host:port, several with commas for a cluster; required; mooncake: the master, also as "
         "rdma://host:port/devices"),
    SWITCH("remote.*.cluster", "no", VALKEY,
           "the servers are a cluster, which says where keys lie"),
    TEXT("remote.*.user", NULL, VALKEY,
         "name to log in by, of at most 256 bytes; absent: the engine's default user"),
    TEXT(
        "remote.*.password_file", NULL, VALKEY,
        "file whose first line is the password, of at most 256 bytes; refused when others than its "
        "owner may read it"),
    SWITCH("remote.*.tls", "no", VALKEY, "encrypt, and verify the servers"),
    TEXT("remote.*.ca", NULL, "remote.*.tls",
         "with tls: file of the certificates trusted; absent: the system's"),
    TEXT("remote.*.cert", NULL, "remote.*.tls", "with tls: this client's certificate"),
    TEXT("remote.*.cert_key", NULL, "remote.*.tls", "with tls: its key"),

    CHOICE("device.*.tier", NULL, "hbm|dram|ssd", ALWAYS, "tier of the device; required"),
    CHOICE("device.*.backend", NULL, "memory|hbm|file|nvme|null|sim", ALWAYS,
           "what drives the device; required"),
    TEXT("device.*.path", NULL, "device.*.backend=file|nvme",
         "required: file: a regular file (made when absent) or block device; nvme: /dev/ngXnY"),
    TEXT("device.*.key_file", NULL, "device.*.backend=file|nvme|memory",
         "encrypts the device by the first key of this file, lines of 64 hexadecimal digits; "
         "refused when others than its owner may read it; a new first line counts at once"),
    TEXT("device.*.key_command", NULL, "device.*.backend=file|nvme|memory and !device.*.key_file",
         "encrypts the device by the keys that this command of the shell writes"),
    BYTES("device.*.capacity", NULL, ALWAYS,
          "bytes; required except for file and nvme, where absent means their size"),
    COUNT("device.*.depth", NULL, ALWAYS,
          "requests in flight at once; absent: the back end's default"),
    SWITCH("device.*.buffered", "no", "device.*.backend=file", "file: go through the page cache"),
    SWITCH("device.*.synchronous", "no", "device.*.backend=file|nvme",
           "file, nvme: do not use io_uring"),
    SWITCH("device.*.prewrite", "yes", "device.*.backend=file",
           "file: write a new file once when it is made, which makes later writes faster"),
    SWITCH("device.*.trim", "no", "device.*.backend=file|nvme",
           "file, nvme: notify the drive or file system of free ranges"),
    COUNT("device.*.node", NULL, "device.*.backend=memory",
          "memory: the NUMA node it is taken from and its worker runs on; absent: any"),
    COUNT("device.*.gpu", "0", "device.*.backend=hbm and !device.*.emulated",
          "hbm: which GPU, as the driver counts them"),
    SWITCH("device.*.emulated", "no", ALWAYS,
           "the device stands in for hardware that is absent; hbm: memory of the host instead of a "
           "GPU's"),
    RATE("device.*.read_bandwidth", NULL, ALWAYS, "cap on reads; sim: the model's read bandwidth"),
    RATE("device.*.write_bandwidth", NULL, ALWAYS,
         "cap on writes; sim: the model's write bandwidth"),
    SECONDS("device.*.latency", NULL, ALWAYS, "seconds added to each request"),
    BYTES("device.*.in_flight", "8MiB", ALWAYS,
          "bytes in flight at once; one request is always allowed"),
    BYTES("device.*.write_budget", "0", ALWAYS, "bytes that may be written in a day; 0: no bound"),
    SWITCH("device.*.write_budget_shadow", "no", "device.*.write_budget",
           "the budget refuses nothing; what it would have refused is counted"),
    NUMBER("device.*.mix_kept", "0", "store.io_order=slack",
           "share of its speed that is left while it reads and writes at once, as profile devices "
           "measures it; 0: unknown",
           0, 1),
    SECONDS("device.*.timeout", "5", ALWAYS,
            "a device that has work and does not answer for so long is retired; 0: never"),

    CHOICE("prefill.gpu", "a100", "a100|h100", "!prefill.profile",
           "preset of the recompute cost model"),
    TEXT("prefill.profile", NULL, "store.profile",
         "name of a prefill model in store.profile, instead of a preset"),
    TEXT("prefill.slack", NULL, "store.profile",
         "name of a table of seconds per layer in store.profile (profile slack), for passes that "
         "announce none"),

    COUNT("replay.servers", "8", ALWAYS, "prefill servers that requests queue for", 1, 65536),
    BYTES("replay.bytes_per_token", "128KiB", ALWAYS,
          "KV bytes of one token (Llama-3.1-8B in bf16)", 1, 1 << 28),
    COUNT("replay.block_tokens", "512", ALWAYS, "tokens of one entry", 1, 65536),
    COUNT("replay.hosts", "1", ALWAYS,
          "simulation: hosts, each with the servers and tiers that are set", 1, 256),
    TEXT(
        "replay.route", "sticky", "replay.hosts!=1",
        "simulation: host of a request: sticky (by its second block), random, spill:SHARE (sticky, "
        "but for a share sent to any), least_loaded"),
    SWITCH("replay.restart", "no", ALWAYS,
           "simulation: each host starts anew once, empty, one after the other"),
    NUMBER("replay.scale", "0.00390625", ALWAYS, "live: factor on bytes and times", DBL_MIN, 1),
    COUNT("replay.seed", "1", ALWAYS,
          "seed of arrivals inside a trace's time step, and of live bytes"),
    NUMBER("replay.warmup", "0", ALWAYS,
           "share of the requests that metrics leave out, from the first", 0, 0.999999999),
    CHOICE("replay.partial_blocks", "whole", "whole|exact", ALWAYS,
           "how a request's last block counts"),
    SWITCH("replay.overlap", "no", ALWAYS,
           "loads overlap the prefill, layer by layer; no: whole loads precede it"),
    COUNT("replay.layers", "0", "replay.overlap",
          "layers of the model, the first of which nothing hides; 0: without end", 0, 65536),
    SWITCH("replay.layered", "no", "replay.overlap and replay.layers",
           "simulation: SSDs are one drive that reads layers and writes in store.io_order"),
    SWITCH("replay.prefetch", "no", ALWAYS,
           "simulation: a request that has to wait offers its blocks for a move up to DRAM when it "
           "arrives"),
    COUNT("replay.seeds", "1", ALWAYS, "runs per policy, each with the next seed", 1, 1000),
    COUNT("replay.limit", "0", ALWAYS, "requests to replay; 0: all"),
    TEXT("replay.ladder", NULL, "store.ladder=none",
         "simulation: variants with sizes and losses for all policies: a file, or "
         "profile:MODEL:CLASS"),
    NUMBER("replay.sensitivity", "0", LADDER " or replay.ladder",
           "with a ladder: sigma of the log factor on an entry's losses", 0, 4),
    NUMBER("replay.repeatability", "1", "replay.sensitivity",
           "with a ladder: how well the policy knows log factors", 0, 1),
    CHOICE("replay.hints", "none", "none|true|half|wrong", ALWAYS,
           "simulation: hints of when a session's next turn comes: none, noisy ones, wrong for one "
           "request in two, always wrong"),
    COUNT("replay.explain", "0", ALWAYS,
          "simulation: stored blocks to explain, those expected to be used soonest", 0, 32),
    SWITCH("replay.bounds", "yes", "replay.hosts=1 and !tier.remote.capacity and !replay.restart",
           "simulation: the bound of the workload and each run's regrets"),
    TEXT("replay.plan_log", NULL, ALWAYS,
         "file that receives every move; of several runs, FILE.POLICY.SEED"),

    TEXT("serve.socket", NULL, ALWAYS, "path of the socket of `kvterrace serve`, up to 107 bytes"),
    TEXT("serve.mode", "0600", LENT, "its mode, in octal"),
    TEXT("serve.group", NULL, LENT, "its group"),
    TEXT("serve.users", NULL, LENT,
         "who may connect, by name or number; absent: the server's user"),
    TEXT("serve.operators", NULL, LENT,
         "who may also list, clear and drain; absent: the server's user and root"),
    COUNT("serve.sessions", "64", LENT, "clients at once", 1, 1024),
    COUNT("serve.depth", "1024", LENT, "requests of a channel, a power of two", 2, 1 << 20),
    BYTES("serve.registered", "1TiB", LENT, "memory that a client may register", 4096,
          (double)(UINT64_C(1) << 46)),
    BYTES("serve.staging", "256MiB", LENT, "staging of a client", 4096,
          (double)(UINT64_C(1) << 46)),
    BYTES("serve.in_flight", "128MiB", LENT,
          "KV of gets, puts, loads under way, of all clients; each of n that have some has an nth",
          4096, INFINITY),
    SECONDS("serve.leave", "2", LENT, "time for requests under way, at the end", 0, 3600),

    NUMBER("workload.rate", "1", ALWAYS,
           "requests a second (Poisson); of traces without a clock, conversations", DBL_MIN, 1e6),
    COUNT("workload.requests", "1000", ALWAYS, "requests to generate", 1, 16777216),
    COUNT("workload.contexts", "100", ALWAYS, "contexts that sessions start from", 1, 1048576),
    NUMBER("workload.zipf", "1", "workload.contexts!=1", "exponent of contexts' popularity", 0, 10),
    COUNT("workload.tokens_median", "8192", ALWAYS, "median context in tokens (lognormal)", 1, 1e7),
    NUMBER("workload.tokens_sigma", "1", ALWAYS, "sigma of the logarithm of it", 0, 4),
    COUNT("workload.tokens_max", "131072", ALWAYS, "longest context in tokens", 1, 4194304),
    NUMBER("workload.turns_mean", "3", ALWAYS, "mean turns of a session (geometric)", 1, 10000),
    COUNT("workload.turn_tokens", "512", "workload.turns_mean!=1", "mean new tokens", 1, 100000),
    COUNT("workload.system_tokens", "0", ALWAYS,
          "tokens of a system prompt that all contexts share", 0, 1048576),
    SECONDS("workload.think_time", "30", "workload.turns_mean!=1",
            "mean pause between the turns of a session", 0, 1e5),
    NUMBER("workload.drift", "0", ALWAYS,
           "so often a second a popular context trades places with any other", 0, 1000),
    NUMBER("workload.scan_rate", "0", ALWAYS,
           "scans: requests per second for documents that nobody asks for again; 0: none", 0, 1e6),
    SECONDS("workload.scan_time", "60", "workload.scan_rate", "length of a scan"),
    SECONDS("workload.scan_period", "600", "workload.scan_rate",
            "from the begin of one scan to the next; the first begins after half of it"),
    NUMBER("workload.crowd_rate", "0", ALWAYS,
           "flash crowds: sessions per second that all begin with one context; 0: none", 0, 1e6),
    SECONDS("workload.crowd_time", "60", "workload.crowd_rate", "length of a flash crowd"),
    SECONDS("workload.crowd_period", "600", "workload.crowd_rate",
            "from the begin of one crowd to the next; the first begins after half of it"),
};

const kvt_setting *kvt_setting_at(size_t index)
{
    const size_t count = sizeof settings_table / sizeof settings_table[0];
    return index < count ? &settings_table[index] : NULL;
}
