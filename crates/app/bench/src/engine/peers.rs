//! Other programs with the same shape on the same threads, measured in turn with the engine.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use bedplate_network::Architecture;
use bedplate_serve::Engine;
use bedplate_terminal::present::{Column, Table};
use bedplate_terminal::{CliError, Console, ProgramError};
use bedplate_transformer::{Attention, Mlp, QkNorm};
use serde_json::{Value, json};

use super::load::{self, PROMPT, TOKENS};
use crate::comm::peers::{InstallError, cache, step_of, torch};
use crate::comm::rank_set::Folder;
use crate::peer::{Companion, Script};

#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(super) enum Peer {
    /// llama.cpp through its batched decode (llama-cpp-python)
    #[value(name = "llama.cpp")]
    LlamaCpp,
    /// PyTorch's prefill
    Torch,
}

impl Peer {
    fn name(self) -> &'static str {
        match self {
            Peer::LlamaCpp => "llama.cpp",
            Peer::Torch => "torch",
        }
    }

    fn script(self) -> &'static str {
        match self {
            Peer::LlamaCpp => include_str!("llama_cpp.py"),
            Peer::Torch => include_str!("torch_prefill.py"),
        }
    }

    fn cases(self) -> &'static [Case] {
        match self {
            Peer::LlamaCpp => &[Case::Decode(1), Case::Decode(16), Case::Prefill],
            Peer::Torch => &[Case::Prefill],
        }
    }

    fn python(self, named: Option<&Path>, console: &Console) -> Result<PathBuf, InstallError> {
        match self {
            Peer::LlamaCpp => llama_cpp(named, console),
            Peer::Torch => torch(named, console),
        }
    }
}

/// What is measured of both.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Case {
    /// So many sequences that decode together.
    Decode(u32),
    Prefill,
}

/// Tokens of a prompt that is measured.
const LONG: u32 = 1024;
/// Both are measured in turn so often, and each counts with its fastest.
const ROUNDS: u32 = 4;

impl Case {
    fn name(self) -> String {
        match self {
            Case::Decode(1) => "one sequence".into(),
            Case::Decode(sequences) => format!("{sequences} sequences"),
            Case::Prefill => format!("a prompt of {LONG}"),
        }
    }

    fn question(self) -> String {
        match self {
            Case::Decode(sequences) => format!("decode {sequences} {PROMPT} {TOKENS}"),
            Case::Prefill => format!("prefill {LONG}"),
        }
    }

    fn ours(self, engine: &Engine, number: &mut u64) -> f64 {
        let mut fresh = |tokens| {
            *number += 1;
            super::prompt(engine, *number, tokens)
        };
        match self {
            Case::Decode(sequences) => {
                load::together(engine, (0..sequences).map(|_| fresh(PROMPT)).collect(), TOKENS)
            }
            Case::Prefill => f64::from(LONG) / load::first(engine, fresh(LONG)),
        }
    }
}

/// Tokens per second of both.
pub(super) struct Compared {
    peer: Peer,
    case: Case,
    ours: f64,
    theirs: f64,
}

/// Measures the engine and its peers in turn.
pub(super) fn compare(
    peers: &[Peer],
    python: Option<&Path>,
    engine: &Engine,
    shape: &Value,
    console: &Console,
) -> Result<Vec<Compared>, CliError> {
    let (mut compared, mut number) = (Vec::new(), 1 << 32);
    for peer in peers {
        let python = peer.python(python, console)?;
        let folder = Folder::make()?;
        let place = folder.path().display().to_string();
        console.say(&format!("starting {}", peer.name()));
        let mut companion = Companion::start(&Script {
            python: &python.display().to_string(),
            text: peer.script(),
            arguments: vec![shape.to_string(), place.clone()],
            directory: &place,
        })?;
        for case in peer.cases() {
            console.say(&format!("{} beside {}", case.name(), peer.name()));
            let (mut ours, mut theirs) = (0.0f64, 0.0f64);
            for _ in 0..ROUNDS {
                ours = ours.max(case.ours(engine, &mut number));
                theirs = theirs.max(companion.ask(&case.question())?);
            }
            compared.push(Compared { peer: *peer, case: *case, ours, theirs });
        }
    }
    Ok(compared)
}

/// A shape as the scripts take it, or why they cannot.
pub(super) fn shape(
    architecture: &Architecture,
    weights: &str,
    threads: usize,
    peers: &[Peer],
) -> Result<Value, ProgramError> {
    let refused = |why: &str| ProgramError::Usage {
        message: format!("--peer takes a dense model of the Llama kind, and {why}"),
    };
    if peers.contains(&Peer::Torch) && weights.starts_with("int") {
        return Err(refused("torch is measured in f32, bf16 or f16"));
    }
    if weights == "fp8" {
        return Err(refused("no peer has weights of fp8 on the processor"));
    }
    let transformer = &architecture.transformer;
    let mut kinds = transformer.layer_kinds().into_iter();
    let (Some(kind), None) = (kinds.next(), kinds.next()) else {
        return Err(refused("the layers of this one differ"));
    };
    let (Attention::GroupedQuery(attention), Mlp::Dense(mlp)) = (&kind.layer.attention, &kind.layer.mlp)
    else {
        return Err(refused("this one has other layers"));
    };
    if !mlp.is_gated || attention.qk_norm != QkNorm::Absent {
        return Err(refused("this one has other layers"));
    }
    Ok(json!({
        "weights": weights,
        "hidden": transformer.hidden,
        "layers": kind.count,
        "heads": attention.heads,
        "kv_heads": attention.kv_heads,
        "head_dim": attention.head_dim,
        "intermediate": mlp.width,
        "vocabulary": transformer.vocab,
        "context": super::CONTEXT,
        "is_tied": transformer.has_tied_embeddings,
        "has_bias": attention.has_qkv_bias,
        "threads": threads,
    }))
}

pub(super) fn show(compared: &[Compared], console: &mut Console) -> Result<(), CliError> {
    let columns = [
        Column::left("in turn with a peer", 0),
        Column::right("tokens/s", 0),
        Column::right("peer", 0),
        Column::right("ratio", 0),
        Column::left("to", 1),
    ];
    let mut table = Table::new(columns.into());
    for Compared { peer, case, ours, theirs } in compared {
        let figures = [format!("{ours:.1}"), format!("{theirs:.1}"), format!("{:.2}", ours / theirs)];
        let [ours, theirs, ratio] = figures;
        table.row(vec![case.name(), ours, theirs, ratio, peer.name().to_owned()]);
    }
    console.table(&table)
}

pub(super) fn json(compared: &[Compared]) -> Value {
    let row = |of: &Compared| {
        json!({
            "peer": of.peer.name(),
            "what": of.case.name(),
            "tokens_per_s": of.ours,
            "peer_tokens_per_s": of.theirs,
            "ratio": of.ours / of.theirs,
        })
    };
    compared.iter().map(row).collect()
}

/// A Python with llama.cpp, built for this processor.
fn llama_cpp(named: Option<&Path>, console: &Console) -> Result<PathBuf, InstallError> {
    const NAME: &str = "llama.cpp";
    const MINUTE: Duration = Duration::from_secs(60);
    let folder = cache().join("llama-cpp");
    let own = folder.join("bin/python");
    let python = named.unwrap_or(&own).to_owned();
    let checked = step_of(NAME, Command::new(&python).args(["-c", "import gguf, llama_cpp"]), MINUTE);
    if named.is_some() || checked.is_ok() {
        return checked.map(|_| python);
    }
    console.say(&format!("building llama-cpp-python into {}, which takes some minutes", folder.display()));
    step_of(NAME, Command::new("python3").args(["-m", "venv"]).arg(&folder), 3 * MINUTE)?;
    let mut build = Command::new(&own);
    build.args(["-m", "pip", "install", "--quiet", "--no-binary", "llama-cpp-python"]);
    build.args(["numpy", "gguf", "llama-cpp-python"]);
    build.env("CMAKE_ARGS", "-DGGML_NATIVE=ON -DLLAVA_BUILD=OFF -DMTMD_BUILD=OFF -DLLAMA_CURL=OFF");
    // What GCC 12 makes of its tile products stops at an illegal instruction.
    if step_of(NAME, Command::new("clang").arg("--version"), MINUTE).is_ok() {
        build.env("CC", "clang").env("CXX", "clang++");
    }
    step_of(NAME, &mut build, 60 * MINUTE)?;
    Ok(own)
}
