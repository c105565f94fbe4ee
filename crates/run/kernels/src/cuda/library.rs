//! Libraries that are found when the program runs: by the system's loader, in CUDA's usual folders, or among the packages of the active Python environment.

use std::env;
use std::ffi::{CStr, c_void};
use std::path::{Path, PathBuf};

use bedplate_host::Library as Opened;

use super::CudaError;

/// An open library; it stays open until the program ends.
pub struct OpenLibrary {
    opened: Opened,
    what: &'static str,
}

/// A library to look for.
pub struct WantedLibrary {
    pub what: &'static str,
    /// File names, the best first.
    pub files: &'static [&'static str],
    /// What to install where it is not there.
    pub package: &'static str,
    /// How the name of a library begins that this one opens by its name alone.
    pub companion: Option<&'static str>,
}

pub(super) const DRIVER: WantedLibrary = WantedLibrary {
    what: "NVIDIA's driver",
    files: &["libcuda.so.1"],
    package: "NVIDIA's driver (on Debian and Ubuntu `nvidia-driver`, in containers the NVIDIA container toolkit)",
    companion: None,
};

pub(super) const NVRTC: WantedLibrary = WantedLibrary {
    what: "the compiler NVRTC",
    files: &["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"],
    package: "NVRTC (`pip install nvidia-cuda-nvrtc` into the active Python environment)",
    companion: Some("libnvrtc-builtins.so"),
};

pub(super) const BLAS: WantedLibrary = WantedLibrary {
    what: "cuBLASLt",
    files: &["libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"],
    package: "cuBLAS (`pip install nvidia-cublas` into the active Python environment)",
    companion: None,
};

impl OpenLibrary {
    pub fn open(wanted: &WantedLibrary) -> Result<Self, CudaError> {
        Self::open_beside(wanted, None)
    }

    /// Looks also under another Python environment.
    pub(super) fn open_beside(wanted: &WantedLibrary, environment: Option<&Path>) -> Result<Self, CudaError> {
        let mut why = "it is not there".to_owned();
        let mut open = |path: &Path| Opened::open_globally(path).map_err(|error| why = error).ok();
        let by_loader = wanted.files.iter().find_map(|file| open(Path::new(file)));
        let opened = by_loader
            .or_else(|| folders(environment).iter().find_map(|folder| open(&found_in(folder, wanted)?)));
        let (what, package, file) = (wanted.what, wanted.package, wanted.files[0]);
        let opened = opened.ok_or(CudaError::Missing { what, file, package, why })?;
        Ok(Self { opened, what })
    }

    /// The address of a function.
    pub fn symbol(&self, name: &'static CStr) -> Result<*mut c_void, CudaError> {
        let symbol = name.to_str().unwrap_or_default();
        self.opened.symbol(name).ok_or(CudaError::TooOld { what: self.what, symbol })
    }
}

/// The library's file in a folder. Its companion there is opened: what is open already is found by its name, wherever it came from.
fn found_in(folder: &Path, wanted: &WantedLibrary) -> Option<PathBuf> {
    let file = wanted.files.iter().map(|file| folder.join(file)).find(|file| file.exists())?;
    if let Some(companion) = wanted.companion {
        let is_companion = |name: &Path| {
            let name = name.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            name.starts_with(companion)
        };
        entries(folder).filter(|entry| is_companion(entry)).for_each(|entry| {
            let _ = Opened::open_globally(&entry);
        });
    }
    Some(file)
}

/// Where libraries may lie that the loader does not find.
fn folders(environment: Option<&Path>) -> Vec<PathBuf> {
    let variable = |name: &str| env::var_os(name).map(PathBuf::from);
    let toolkits = [variable("CUDA_HOME"), variable("CUDA_PATH"), Some(PathBuf::from("/usr/local/cuda"))];
    let mut folders: Vec<PathBuf> = toolkits
        .into_iter()
        .flatten()
        .flat_map(|toolkit| [toolkit.join("lib64"), toolkit.join("lib")])
        .collect();
    let mut prefixes: Vec<PathBuf> =
        [variable("VIRTUAL_ENV"), variable("CONDA_PREFIX")].into_iter().flatten().collect();
    let path = env::var_os("PATH").unwrap_or_default();
    let has_python = |folder: &PathBuf| folder.is_absolute() && folder.join("python3").exists();
    prefixes
        .extend(env::split_paths(&path).filter(has_python).filter_map(|bin| Some(bin.parent()?.to_owned())));
    prefixes.extend(environment.map(Path::to_owned));
    for prefix in prefixes {
        folders.extend(packages_of(&prefix));
    }
    folders
}

/// The folders of NVIDIA's packages under a Python environment.
fn packages_of(prefix: &Path) -> Vec<PathBuf> {
    let is_python = |folder: &PathBuf| {
        folder.file_name().is_some_and(|name| name.to_string_lossy().starts_with("python3"))
    };
    let libraries = entries(&prefix.join("lib")).filter(is_python);
    let sites = libraries.flat_map(|python| [python.join("site-packages"), python.join("dist-packages")]);
    sites
        .flat_map(|site| entries(&site.join("nvidia")).map(|package| package.join("lib")).collect::<Vec<_>>())
        .collect()
}

/// The entries of a folder, in order; none where it cannot be read.
fn entries(folder: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    let read = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut entries: Vec<PathBuf> = read.collect();
    entries.sort();
    entries.into_iter()
}

/// Loads functions of a library by their names: a struct with a method for each. All of them answer with a code, as NVIDIA's libraries do.
#[macro_export]
macro_rules! functions {
    ($(#[$doc:meta])* $name:ident { $($method:ident = $symbol:literal ($($argument:ident: $type:ty),* $(,)?);)* }) => {
        $(#[$doc])*
        pub(super) struct $name {
            $($method: unsafe extern "C" fn($($type),*) -> i32,)*
        }

        impl $name {
            pub(super) fn load(library: &$crate::OpenLibrary) -> Result<Self, $crate::CudaError> {
                Ok(Self {
                    $($method: {
                        let found = library.symbol($symbol)?;
                        // SAFETY: the library's headers declare the function with these arguments, all passed as C passes them.
                        unsafe {
                            std::mem::transmute::<*mut std::ffi::c_void, unsafe extern "C" fn($($type),*) -> i32>(found)
                        }
                    },)*
                })
            }

            $(
                #[allow(clippy::too_many_arguments, reason = "as the library has it")]
                pub(super) fn $method(&self, $($argument: $type),*) -> i32 {
                    // SAFETY: handles and device addresses were made by this library for the caller; host pointers are of values that
                    // outlive the call.
                    unsafe { (self.$method)($($argument),*) }
                }
            )*
        }
    };
}

pub(super) use crate::functions;
