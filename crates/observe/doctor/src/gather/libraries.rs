//! Libraries and their versions, without loading any: from file names, package metadata and the text inside them.

use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::Instant;

use bedplate_host::read_beginning;

use super::{Sources, names, read_text, remark};
use crate::facts::{LibraryCopy, NodeFacts};
use crate::version::Version;

/// Folders that the loader and the usual installers use; `LD_LIBRARY_PATH` comes before them.
const FOLDERS: [&str; 20] = [
    "/opt/amazon/efa/lib",
    "/opt/amazon/efa/lib64",
    "/opt/amazon/ofi-nccl/lib",
    "/opt/amazon/ofi-nccl/lib64",
    "/opt/amazon/ofi-nccl/lib/x86_64-linux-gnu",
    "/opt/amazon/ofi-nccl/lib/aarch64-linux-gnu",
    "/opt/amazon/aws-ofi-nccl/lib",
    "/opt/amazon/aws-ofi-nccl/lib/x86_64-linux-gnu",
    "/opt/aws-ofi-nccl/lib",
    "/opt/aws-ofi-nccl/install/lib",
    "/usr/local/nccl/lib",
    "/usr/local/cuda/lib64",
    "/usr/local/cuda/efa/lib",
    "/usr/local/lib",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/opt/hpcx/ucx/lib",
    "/usr/local/ucx/lib",
];
/// What a library's file is called, and the name that we give it.
const FILES: [(&str, &str); 4] = [
    ("libnccl.so", "nccl"),
    ("libcudart.so", "cuda-runtime"),
    ("libcudnn.so", "cudnn"),
    ("libgdrapi.so", "gdrcopy"),
];
/// Libraries whose release is in a pkg-config file: their `.so` carries a version of the interface.
const CONFIGURED: [(&str, &str); 2] = [("libfabric.pc", "libfabric"), ("ucx.pc", "ucx")];
const LARGEST_PLUGIN: u64 = 64 << 20;
/// Of a thread that only lists a folder.
const STACK: usize = 128 << 10;

pub(super) fn gather(sources: &Sources, facts: &mut NodeFacts) {
    let mut seen: Vec<PathBuf> = Vec::new();
    for folder in those_that_answer(sources, folders(sources), facts) {
        let real = std::fs::canonicalize(&folder).unwrap_or_else(|_| folder.clone());
        if !seen.contains(&real) {
            in_folder(sources, &folder, facts);
            seen.push(real);
        }
    }
    toolkit(sources, facts);
    for packages in site_packages(sources, facts) {
        in_packages(sources, &packages, facts);
    }
}

/// The folders that can be listed at once; of the others, which lie on a mount that hangs, it is said.
fn those_that_answer(sources: &Sources, folders: Vec<PathBuf>, facts: &mut NodeFacts) -> Vec<PathBuf> {
    let (tell, told) = mpsc::channel();
    for (at, folder) in folders.iter().enumerate() {
        let (folder, tell) = (folder.clone(), tell.clone());
        let look = move || {
            let _ = std::fs::read_dir(folder).map(|mut entries| entries.next());
            let _ = tell.send(at);
        };
        // Without a thread it counts as silent.
        let _ = thread::Builder::new().name("doctor".to_owned()).stack_size(STACK).spawn(look);
    }
    drop(tell);
    let deadline = Instant::now() + sources.patience;
    let mut answers = vec![false; folders.len()];
    while let Ok(at) = told.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
        answers[at] = true;
    }
    let (there, silent): (Vec<_>, Vec<_>) =
        folders.into_iter().zip(answers).partition(|(_, answers)| *answers);
    for (folder, _) in silent {
        let seconds = sources.patience.as_secs();
        remark(facts, "libraries", format!("{} does not answer within {seconds} s", folder.display()));
    }
    there.into_iter().map(|(folder, _)| folder).collect()
}

fn folders(sources: &Sources) -> Vec<PathBuf> {
    let path = sources.environment.get("LD_LIBRARY_PATH").map(String::as_str).unwrap_or_default();
    let named =
        path.split(':').filter(|folder| folder.starts_with('/')).take(64).map(|folder| sources.at(folder));
    named.chain(FOLDERS.iter().map(|folder| sources.at(folder))).collect()
}

fn in_folder(sources: &Sources, folder: &Path, facts: &mut NodeFacts) {
    let files = names(folder);
    for (file, name) in FILES {
        if let Some(library) = versioned(sources, folder, &files, file, name) {
            facts.libraries.push(library);
        }
    }
    if let Some(file) = files.iter().find(|file| file.starts_with("libnccl-net") && file.contains(".so")) {
        let path = folder.join(file);
        let version = text_inside(&path, b"Initializing aws-ofi-nccl ");
        let name = if version.is_some() { "aws-ofi-nccl" } else { "nccl-plugin" };
        facts.libraries.push(library(sources, name, version, &path));
    }
    for (file, name) in CONFIGURED {
        let path = folder.join("pkgconfig").join(file);
        if let Some(text) = read_text(&path) {
            let version =
                text.lines().find_map(|line| line.strip_prefix("Version:")).and_then(Version::parse);
            facts.libraries.push(library(sources, name, version, &path));
        }
    }
}

/// The copy of a library with the longest version in its name: `libnccl.so`, `.so.2` and `.so.2.21.5` are one.
fn versioned(
    sources: &Sources,
    folder: &Path,
    files: &[String],
    file: &str,
    name: &str,
) -> Option<LibraryCopy> {
    let suffix = |it: &&String| it.strip_prefix(file).map(|rest| rest.trim_start_matches('.').to_owned());
    let found: Vec<(String, &String)> = files.iter().filter_map(|it| Some((suffix(&it)?, it))).collect();
    let (version, file) = found.into_iter().max_by_key(|(version, _)| version.matches('.').count())?;
    Some(library(sources, name, Version::parse(&version), &folder.join(file)))
}

fn library(sources: &Sources, name: &str, version: Option<Version>, path: &Path) -> LibraryCopy {
    let shown =
        path.strip_prefix(&sources.root).map_or_else(|_| path.to_owned(), |rest| Path::new("/").join(rest));
    LibraryCopy { name: name.to_owned(), version, path: shown.display().to_string(), cuda: None }
}

/// The word after a mark inside a file.
fn text_inside(path: &Path, mark: &[u8]) -> Option<Version> {
    let bytes = read_beginning(path, LARGEST_PLUGIN).ok()?;
    let at = bytes.windows(mark.len()).position(|window| window == mark)? + mark.len();
    let word: Vec<u8> = bytes[at..].iter().copied().take(40).take_while(u8::is_ascii_graphic).collect();
    Version::parse(&String::from_utf8_lossy(&word))
}

/// `/usr/local/cuda/version.json`
fn toolkit(sources: &Sources, facts: &mut NodeFacts) {
    const PATH: &str = "/usr/local/cuda/version.json";
    let Some(text) = sources.text(PATH) else { return };
    let document: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
    let version = document["cuda"]["version"].as_str().and_then(Version::parse);
    facts.libraries.push(library(sources, "cuda-toolkit", version, &sources.at(PATH)));
}

/// Folders of Python packages: of the active environment, then of the system.
fn site_packages(sources: &Sources, facts: &mut NodeFacts) -> Vec<PathBuf> {
    let mut roots: Vec<PathBuf> = ["VIRTUAL_ENV", "CONDA_PREFIX"]
        .iter()
        .filter_map(|name| sources.environment.get(*name))
        .map(|folder| sources.at(folder).join("lib"))
        .collect();
    let home = sources.environment.get("HOME").map(|home| sources.at(home).join(".local/lib"));
    roots.extend(home);
    roots.extend(
        ["/opt/conda/lib", "/opt/venv/lib", "/usr/local/lib", "/usr/lib"].map(|path| sources.at(path)),
    );
    let mut found = Vec::new();
    for root in those_that_answer(sources, roots, facts) {
        for name in names(&root).into_iter().filter(|name| name.starts_with("python3")) {
            found.extend(["site-packages", "dist-packages"].map(|kind| root.join(&name).join(kind)));
        }
    }
    found.retain(|folder| folder.is_dir());
    found.dedup();
    found
}

/// Packages whose metadata folders name the version: `torch-2.5.1+cu124.dist-info`.
fn in_packages(sources: &Sources, folder: &Path, facts: &mut NodeFacts) {
    const PACKAGES: [(&str, &str); 7] = [
        ("torch", "pytorch"),
        ("nvidia_nccl_cu12", "nccl"),
        ("nvidia_nccl_cu13", "nccl"),
        ("nvidia_cuda_runtime_cu12", "cuda-runtime"),
        ("nvidia_cuda_runtime", "cuda-runtime"),
        ("nvidia_cudnn_cu12", "cudnn"),
        ("nvidia_cudnn_cu13", "cudnn"),
    ];
    for entry in names(folder) {
        let Some((package, version)) = entry.strip_suffix(".dist-info").and_then(|it| it.rsplit_once('-'))
        else {
            continue;
        };
        let Some((_, name)) = PACKAGES.iter().find(|(known, _)| *known == package) else { continue };
        let mut found = library(sources, name, Version::parse(version), &folder.join(&entry));
        if *name == "pytorch" {
            found.cuda = torch_cuda(folder);
        }
        facts.libraries.push(found);
    }
}

/// `cuda: Optional[str] = '12.4'` in PyTorch's version.py.
fn torch_cuda(folder: &Path) -> Option<Version> {
    let text = read_text(&folder.join("torch/version.py"))?;
    let line = text.lines().find(|line| line.starts_with("cuda"))?;
    Version::parse(line.split_once('=')?.1.trim().trim_matches(['\'', '"']))
}
