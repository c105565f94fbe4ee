//! A `libnvidia-ml.so.1` that is scripted by a file, for tests without GPUs.
//!
//! As a shared library it answers NVML's calls from `nvml.json` beside itself, which it reads again when it changes. As a Rust
//! library it has [`FakeNvml`], which puts a copy of that library and its script into a folder. Each copy has state of its
//! own, so tests in one process do not meet.
//!
//! ```json
//! {"gpus": [{"temperature": 41, "power_w": 300, "fails": {"nvmlDeviceGetPowerUsage": 3}}, {"lost": true}],
//!  "events": [{"gpu": 0, "xid": 79}], "fails": {"nvmlInit_v2": 9}}
//! ```
//!
//! The same shared library is a driver, a compiler and a cuBLASLt of a GPU that computes nothing and fails when it is told to: [`install_cuda`].
//!
//! What a GPU does not say has a plausible value; `null` means that the GPU does not support it.

mod answers;
mod cuda;
mod script;
mod symbols;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

/// The name under which programs look for NVML.
pub const LIBRARY: &str = "libnvidia-ml.so.1";
const SCRIPT: &str = "nvml.json";

/// A copy of the library in a folder, with its script.
#[derive(Debug, Clone)]
pub struct FakeNvml {
    folder: PathBuf,
}

impl FakeNvml {
    /// Copies the library into a folder that exists, scripted as a host with healthy GPUs.
    pub fn install(folder: &Path, gpus: usize) -> io::Result<Self> {
        Self::install_from(&built()?, folder, gpus)
    }

    pub fn install_from(library: &Path, folder: &Path, gpus: usize) -> io::Result<Self> {
        fs::copy(library, folder.join(LIBRARY))?;
        let fake = Self { folder: folder.to_owned() };
        fake.write(&json!({ "gpus": vec![json!({}); gpus] }))?;
        Ok(fake)
    }

    /// One that was installed before.
    pub fn at(folder: &Path) -> Self {
        Self { folder: folder.to_owned() }
    }

    pub fn library(&self) -> PathBuf {
        self.folder.join(LIBRARY)
    }

    /// Replaces the script as a whole.
    pub fn write(&self, script: &Value) -> io::Result<()> {
        let fresh = self.folder.join(".nvml.json.new");
        fs::write(&fresh, script.to_string())?;
        fs::rename(fresh, self.folder.join(SCRIPT))
    }

    /// Changes the script.
    pub fn change(&self, change: impl FnOnce(&mut Value)) -> io::Result<()> {
        let text = fs::read_to_string(self.folder.join(SCRIPT))?;
        let mut script: Value = serde_json::from_str(&text)?;
        change(&mut script);
        self.write(&script)
    }

    /// Adds an XID event of a GPU.
    pub fn raise_xid(&self, gpu: usize, xid: u64) -> io::Result<()> {
        self.change(|script| match script["events"].as_array_mut() {
            Some(events) => events.push(json!({ "gpu": gpu, "xid": xid })),
            None => script["events"] = json!([{ "gpu": gpu, "xid": xid }]),
        })
    }

    /// Makes the library one without this function, as an older driver's would be. Only before it is loaded.
    pub fn without(&self, symbol: &str) -> io::Result<()> {
        let mut bytes = fs::read(self.library())?;
        let name: Vec<u8> = [b"\0", symbol.as_bytes(), b"\0"].concat();
        while let Some(at) = bytes.windows(name.len()).position(|window| window == name) {
            bytes[at + 1] = b'x';
        }
        fs::write(self.library(), bytes)
    }
}

/// Copies the library into a folder that exists, under the names of CUDA's libraries. A process that is started with the folder first in `LD_LIBRARY_PATH` finds one GPU,
/// which fails as `BEDPLATE_FAKE_CUDA` says: `cuLaunchKernelEx:40:700`.
pub fn install_cuda(folder: &Path) -> io::Result<()> {
    let library = built()?;
    let names = ["libcuda.so.1", "libnvrtc.so.13", "libcublasLt.so.13"];
    names.iter().try_for_each(|name| fs::copy(&library, folder.join(name)).map(drop))
}

/// Runs a test of the program that calls this once more, in a process of its own that has the stand-in's GPU: what it said, and the calls that
/// the stand-in has logged. The test finds `BEDPLATE_TEST_CHILD` in its environment there.
pub fn on_stand_in(test: &str, plan: &str) -> io::Result<(String, Vec<String>)> {
    let name = format!("bedplate-{}-{test}-{}", std::process::id(), plan.replace(':', "-"));
    let folder = std::env::temp_dir().join(name);
    fs::create_dir_all(&folder)?;
    install_cuda(&folder)?;
    let child = Command::new(std::env::current_exe()?)
        .args(["--exact", test, "--nocapture"])
        .env("LD_LIBRARY_PATH", &folder)
        .env("XDG_CACHE_HOME", folder.join("cache"))
        .env("BEDPLATE_FAKE_CUDA", plan)
        .env("BEDPLATE_FAKE_CUDA_LOG", folder.join("log"))
        .env("BEDPLATE_TEST_CHILD", "1")
        .output()?;
    let said = String::from_utf8_lossy(&[child.stdout, child.stderr].concat()).into_owned();
    let calls = fs::read_to_string(folder.join("log")).unwrap_or_default();
    fs::remove_dir_all(folder)?;
    Ok((said, calls.lines().map(str::to_owned).collect()))
}

/// How often the stand-in of this process was asked to start work, by its log so far: kernels, products and whole graphs.
pub fn launches() -> io::Result<u64> {
    let log = std::env::var_os("BEDPLATE_FAKE_CUDA_LOG").ok_or(io::ErrorKind::NotFound)?;
    let is_launch = |call: &&str| matches!(*call, "cuLaunchKernelEx" | "cublasLtMatmul" | "cuGraphLaunch");
    Ok(fs::read_to_string(log)?.lines().filter(is_launch).count() as u64)
}

/// Where cargo has put the library: beside the program that runs, or where that one's dependencies are.
pub fn built() -> io::Result<PathBuf> {
    let program = std::env::current_exe()?;
    let folders = program.ancestors().skip(1).take(2);
    let mut candidates = folders.flat_map(|folder| [folder.to_owned(), folder.join("deps")]);
    let found = candidates.find_map(|folder| {
        let library = folder.join("libbedplate_fakenvml.so");
        library.is_file().then_some(library)
    });
    found.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "build bedplate-fakenvml first"))
}
