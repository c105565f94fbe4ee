//! Libraries that are found when the program runs: by the system's loader, in CUDA's usual folders, or among the packages of the active Python environment.
#![expect(unsafe_code, reason = "opens libraries")]

use std::env;
use std::ffi::{CStr, CString, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::CudaError;

/// An open library; it stays open until the program ends.
pub struct Library {
    handle: usize,
    what: &'static str,
}

/// A library to look for.
pub struct Wanted {
    pub what: &'static str,
    /// File names, the best first.
    pub files: &'static [&'static str],
    /// What to install where it is not there.
    pub package: &'static str,
    /// How the name of a library begins that this one opens by its name alone.
    pub companion: Option<&'static str>,
}

pub(super) const DRIVER: Wanted = Wanted {
    what: "NVIDIA's driver",
    files: &["libcuda.so.1"],
    package: "NVIDIA's driver (on Debian and Ubuntu `nvidia-driver`, in containers the NVIDIA container toolkit)",
    companion: None,
};

pub(super) const NVRTC: Wanted = Wanted {
    what: "the compiler NVRTC",
    files: &["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"],
    package: "NVRTC (`pip install nvidia-cuda-nvrtc` into the active Python environment)",
    companion: Some("libnvrtc-builtins.so"),
};

pub(super) const BLAS: Wanted = Wanted {
    what: "cuBLASLt",
    files: &["libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"],
    package: "cuBLAS (`pip install nvidia-cublas` into the active Python environment)",
    companion: None,
};

impl Library {
    pub fn open(wanted: &Wanted) -> Result<Self, CudaError> {
        Self::open_beside(wanted, None)
    }

    /// Looks also under another Python environment.
    pub(super) fn open_beside(wanted: &Wanted, environment: Option<&Path>) -> Result<Self, CudaError> {
        let by_loader = wanted.files.iter().find_map(|file| open(Path::new(file)));
        let handle = match by_loader {
            Some(handle) => Some(handle),
            None => folders(environment).iter().find_map(|folder| open_in(folder, wanted)),
        };
        let file = wanted.files[0];
        let missing =
            || CudaError::Missing { what: wanted.what, file, package: wanted.package, why: last_error() };
        handle.map(|handle| Self { handle, what: wanted.what }).ok_or_else(missing)
    }

    /// The address of a function.
    pub fn symbol(&self, name: &'static CStr) -> Result<*mut c_void, CudaError> {
        // SAFETY: the handle is an open library's and the name ends with a zero.
        let found = unsafe { libc::dlsym(std::ptr::with_exposed_provenance_mut(self.handle), name.as_ptr()) };
        let symbol = name.to_str().unwrap_or_default();
        if found.is_null() { Err(CudaError::TooOld { what: self.what, symbol }) } else { Ok(found) }
    }
}

fn open_in(folder: &Path, wanted: &Wanted) -> Option<usize> {
    let file = wanted.files.iter().map(|file| folder.join(file)).find(|file| file.exists())?;
    if let Some(companion) = wanted.companion {
        // What is open already is found by its name, wherever it came from.
        let is_companion = |name: &Path| {
            let name = name.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            name.starts_with(companion)
        };
        entries(folder).filter(|entry| is_companion(entry)).for_each(|entry| {
            open(&entry);
        });
    }
    open(&file)
}

fn open(path: &Path) -> Option<usize> {
    let path = CString::new(path.as_os_str().as_bytes()).ok()?;
    // SAFETY: the path ends with a zero. What runs when the library is opened is its own.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
    (!handle.is_null()).then(|| handle.expose_provenance())
}

fn last_error() -> String {
    // SAFETY: the text, if any, ends with a zero and stays until the next call of this thread.
    let text = unsafe {
        let text = libc::dlerror();
        (!text.is_null()).then(|| CStr::from_ptr(text).to_string_lossy().into_owned())
    };
    text.unwrap_or_else(|| "it is not there".to_owned())
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
            pub(super) fn load(library: &$crate::Library) -> Result<Self, $crate::CudaError> {
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
