//! What `bedplate` says of the program `bedplate-bench`, which may not be installed: the benchmarks by name, and the
//! pages of their error codes.

use bedplate_diag::{Class, Page};

/// The benchmarks and what they measure, in the order of their help.
pub const BENCHMARKS: [(&str, &str); 17] = [
    ("search", "Layouts priced per second and core"),
    (
        "deploy",
        "Seconds of a whole search for a deployment, and errors of its predictions next to aiconfigurator's",
    ),
    ("schedule", "Milliseconds per pass of the cluster scheduler"),
    ("submit", "Jobs accepted per second, and seconds until many small ones are done"),
    ("abuse", "What one user with ordinary rights can do to another, by twenty ways to abuse a cluster"),
    ("kernels", "Milliseconds of each operator, of a block and of whole models, next to PyTorch"),
    ("training", "Predicted and measured steps of six models on this host"),
    ("heal", "Seconds until a gang runs again after the loss of a node, and until a killed daemon is back"),
    ("alert", "Seconds from an XID to an alert at a webhook, through a real Prometheus and Alertmanager"),
    ("observe", "Seconds from an XID to a drained node, and what the exporter costs"),
    ("comm", "Collectives between ranks of this machine, next to Gloo and Open MPI"),
    ("checkpoint", "Checkpoints written per second, next to fio, and what they cost a training run"),
    ("survival", "What killed ranks cost a training run, next to a restart from a checkpoint"),
    (
        "engine",
        "A model that answers on this host: next to the memory's limit, by batch, and as `replay` predicts it",
    ),
    ("serve", "What clients of a server of models experience under load: ours, vLLM, SGLang"),
    (
        "diagnose",
        "How often a diagnosis is right, how soon it comes, what it costs: simulated gangs, labelled logs, real step times",
    ),
    ("machine", "Measure this host with the program's own operators, as a catalog file to plan with"),
];

/// Examples, for help.
pub const EXAMPLES: &str = "\
Examples:
  bedplate bench search
  bedplate bench deploy
  bedplate bench deploy --peer aiconfigurator --peer-python venv/bin/python
  bedplate bench search --peer calculon --peer-path ~/calculon --json
  bedplate bench schedule --nodes 1000 --pending 10000
  bedplate bench submit --peer slurm
  bedplate bench abuse --seconds 10
  bedplate bench heal
  bedplate bench alert
  bedplate bench observe
  bedplate bench comm --peer gloo,openmpi
  bedplate bench checkpoint --seconds 300
  bedplate bench survival --kills 50
  bedplate bench engine --model qwen2.5-0.5b --weights int8
  bedplate bench machine
  bedplate bench diagnose
  bedplate bench serve http://127.0.0.1:8000 --concurrency 32
  bedplate bench kernels --peer torch --peer-python venv/bin/python";

/// The documentation of every error code of the benchmarks.
pub const PAGES: &[&Page] = &[
    &NOT_MEASURED,
    &NOT_LABELLED,
    &LINK,
    &NO_ALERT,
    &NO_FIO,
    &NOT_INSTALLED,
    &NOT_SURVIVED,
    &PEER_FAILED,
    &PEERS,
    &RANK,
    &RANKS_FAILED,
    &SLURM,
    &STUCK,
    &TORCH,
];

pub static NOT_MEASURED: Page = Page {
    code: "bench/host-not-measured",
    class: Class::User,
    meaning: "Predictions for this host are based on rates that `bedplate bench machine` measures and keeps in a catalog file. \
              There is none, neither in its usual place nor among those given with `--catalog`.",
    remedy: "run `bedplate bench machine` first",
};

pub static NOT_LABELLED: Page = Page {
    code: "bench/not-labelled",
    class: Class::User,
    meaning: "A table of labels or a file of step times could not be used as it is.",
    remedy: "see `bedplate bench diagnose --help` for the columns and labels",
};

pub static LINK: Page = Page {
    code: "bench/link",
    class: Class::User,
    meaning: "Two network namespaces with a limited link between them could not be made. This needs root, the programs \
              `ip` and `tc`, and a kernel with veth devices and the tbf queueing discipline.",
    remedy: "check the rate given with --link (such as 1gbit), and that `ip netns add` and `tc qdisc add … tbf` work here",
};

pub static NO_ALERT: Page = Page {
    code: "bench/no-alert",
    class: Class::Bug,
    meaning: "The benchmark raised an XID that Prometheus scrapes, and no alert reached the webhook.",
    remedy: "run it again on a machine with free cores; if it stays, please report it",
};

pub static NO_FIO: Page = Page {
    code: "bench/no-fio",
    class: Class::User,
    meaning: "The rate of checkpoints is compared with what fio writes to the same disk in the same minute. fio is not installed or failed.",
    remedy: "install it with `apt-get install fio`, and check that the folder may be written to",
};

pub static NOT_INSTALLED: Page = Page {
    code: "bench/not-installed",
    class: Class::User,
    meaning: "The peer that was asked for is not on this machine, and it could not be installed.",
    remedy: "install it yourself: `pip install torch`, or llama-cpp-python and gguf (then name that Python with --peer-python), or the \
             packages openmpi-bin and libopenmpi-dev",
};

pub static NOT_SURVIVED: Page = Page {
    code: "bench/not-survived",
    class: Class::Transient,
    meaning: "A training run that should have survived the loss of ranks did not end as it should, or the folder could \
              not be written to. The message has the last output of the run.",
    remedy: "look at what the run said; try again with the same `--seed` on an otherwise idle machine",
};

pub static PEER_FAILED: Page = Page {
    code: "bench/peer-failed",
    class: Class::User,
    meaning: "The peer program did not run: it is missing, incomplete, or lacks a package.",
    remedy: "check --peer-path or --peer-python, and that this Python has the packages the peer needs (calculon: numpy, pandas, psutil; torch: torch; llama.cpp: llama-cpp-python, gguf; aiconfigurator: `pip install aiconfigurator`)",
};

pub static PEERS: Page = Page {
    code: "bench/prometheus",
    class: Class::User,
    meaning: "Prometheus, Alertmanager or the endpoint that they scrape did not start.",
    remedy: "install them: `apt-get install prometheus prometheus-alertmanager`",
};

pub static RANK: Page = Page {
    code: "bench/rank",
    class: Class::Transient,
    meaning: "A rank of `bedplate bench comm` lost the command that started it.",
    remedy: "run `bedplate bench comm` again; ranks are not started by hand",
};

pub static RANKS_FAILED: Page = Page {
    code: "bench/ranks-failed",
    class: Class::User,
    meaning: "The ranks that measure collectives did not start, ended early, or did not answer in time.",
    remedy: "read the last line that they said; for a peer, check that it works by itself on this machine",
};

pub static SLURM: Page = Page {
    code: "bench/slurm",
    class: Class::User,
    meaning: "The benchmark starts a Slurm of its own from this system's packages, and that failed: they are not installed, or their daemons do not start.",
    remedy: "install them: apt-get install --no-install-recommends slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge",
};

pub static STUCK: Page = Page {
    code: "bench/stuck",
    class: Class::Bug,
    meaning: "Jobs that do nothing had not ended after minutes.",
    remedy: "please report the command and this message",
};

pub static TORCH: Page = Page {
    code: "bench/torch-failed",
    class: Class::User,
    meaning: "PyTorch could not be measured: the given Python does not start, or has no torch.",
    remedy: "make a virtual environment (`python3 -m venv venv && venv/bin/pip install torch`) and give \
             `--peer-python venv/bin/python`",
};
