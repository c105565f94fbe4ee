//! Kernels from source to machine code: NVRTC, and a cache of what it made.
//!
//! An entry of the cache is named by a hash of source, options, architecture and compiler version. It is written under another name and
//! renamed, so that a reader finds a whole entry or none; a cache that cannot be written costs time and nothing else.
#![expect(unsafe_code, reason = "calls the compiler")]

use std::env;
use std::ffi::{CString, c_char};
use std::fs;
use std::path::PathBuf;

use bedplate_host::replace_file;

use super::CudaError;
use super::library::{NVRTC, OpenLibrary, functions};

functions! {
    /// NVRTC's functions.
    Functions {
        version = c"nvrtcVersion"(major: &mut i32, minor: &mut i32);
        create = c"nvrtcCreateProgram"(
            program: &mut usize, source: *const c_char, name: *const c_char, headers: i32,
            header_sources: *const *const c_char, header_names: *const *const c_char,
        );
        compile = c"nvrtcCompileProgram"(program: usize, count: i32, options: *const *const c_char);
        log_size = c"nvrtcGetProgramLogSize"(program: usize, size: &mut usize);
        log = c"nvrtcGetProgramLog"(program: usize, log: *mut c_char);
        image_size = c"nvrtcGetCUBINSize"(program: usize, size: &mut usize);
        image = c"nvrtcGetCUBIN"(program: usize, image: *mut c_char);
        destroy = c"nvrtcDestroyProgram"(program: &mut usize);
    }
}

pub(super) struct Compiler {
    functions: Functions,
    version: (i32, i32),
    cache: Option<PathBuf>,
}

/// Machine code, and what the compiler said about it.
pub(super) struct Compiled {
    pub(super) image: Vec<u8>,
    #[cfg_attr(not(test), expect(dead_code, reason = "tests look at what the compiler warned of"))]
    pub(super) log: String,
}

impl Compiler {
    pub(super) fn new() -> Result<Self, CudaError> {
        Self::of(&OpenLibrary::open(&NVRTC)?)
    }

    /// Looks also in a Python environment that is not active.
    #[cfg(test)]
    pub(super) fn in_environment(environment: &std::path::Path) -> Result<Self, CudaError> {
        Self::of(&OpenLibrary::open_beside(&NVRTC, Some(environment))?)
    }

    fn of(library: &OpenLibrary) -> Result<Self, CudaError> {
        let functions = Functions::load(library)?;
        let mut version = (0, 0);
        functions.version(&mut version.0, &mut version.1);
        Ok(Self { functions, version, cache: cache_folder() })
    }

    pub(super) fn version(&self) -> (i32, i32) {
        self.version
    }

    /// The machine code, from the cache where it is there.
    pub(super) fn image(
        &self,
        kernel: &'static str,
        architecture: &str,
        source: &str,
        options: &[String],
    ) -> Result<Vec<u8>, CudaError> {
        let entry = self.cache.as_ref().map(|cache| cache.join(self.entry(architecture, source, options)));
        if let Some(image) =
            entry.as_ref().and_then(|entry| fs::read(entry).ok()).filter(|image| is_whole(image))
        {
            return Ok(image);
        }
        let image = self.compile(kernel, architecture, source, options)?.image;
        if let Some(entry) = entry {
            store(&entry, &image);
        }
        Ok(image)
    }

    pub(super) fn compile(
        &self,
        kernel: &'static str,
        architecture: &str,
        source: &str,
        options: &[String],
    ) -> Result<Compiled, CudaError> {
        let wrong = |log: String| CudaError::Compile { kernel, architecture: architecture.to_owned(), log };
        let fixed = [
            format!("--gpu-architecture={architecture}"),
            "--std=c++17".to_owned(),
            "--ptxas-options=-v".to_owned(),
        ];
        let text = |text: &str| CString::new(text).map_err(|error| wrong(error.to_string()));
        let (source, name) = (text(source)?, text(kernel)?);
        let options =
            fixed.iter().chain(options).map(|option| text(option)).collect::<Result<Vec<_>, _>>()?;
        let options: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        let (mut program, none) = (0, std::ptr::null());
        let created = self.functions.create(&mut program, source.as_ptr(), name.as_ptr(), 0, none, none);
        if created != 0 {
            return Err(wrong(format!("error {created}")));
        }
        let code = self.functions.compile(program, options.len() as i32, options.as_ptr());
        let log = self.text_of(program);
        let mut size = 0;
        let image = match (code, self.functions.image_size(program, &mut size)) {
            (0, 0) => {
                let mut image = vec![0u8; size];
                self.functions.image(program, image.as_mut_ptr().cast());
                Ok(Compiled { image, log })
            }
            _ => Err(wrong(log)),
        };
        self.functions.destroy(&mut program);
        image
    }

    fn text_of(&self, program: usize) -> String {
        let mut size = 0;
        self.functions.log_size(program, &mut size);
        let mut log = vec![0u8; size.max(1)];
        self.functions.log(program, log.as_mut_ptr().cast());
        String::from_utf8_lossy(&log).trim_end_matches(['\0', '\n']).to_owned()
    }

    fn entry(&self, architecture: &str, source: &str, options: &[String]) -> String {
        let (major, minor) = self.version;
        let key = format!("{major}.{minor}\n{architecture}\n{}\n{source}", options.join(" "));
        format!("{:016x}{:016x}.cubin", hash(0xcbf2_9ce4_8422_2325, &key), hash(0x9e37_79b9_7f4a_7c15, &key))
    }
}

/// FNV-1a from a start; two starts make a name long enough that no two kernels share it.
fn hash(start: u64, text: &str) -> u64 {
    text.bytes().fold(start, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

fn cache_folder() -> Option<PathBuf> {
    let home = |name: &str| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = home("XDG_CACHE_HOME").or_else(|| Some(home("HOME")?.join(".cache")))?;
    Some(cache.join("bedplate/kernels"))
}

/// Machine code is an ELF file.
fn is_whole(image: &[u8]) -> bool {
    image.starts_with(b"\x7fELF")
}

fn store(entry: &std::path::Path, image: &[u8]) {
    let folder = entry.parent().map_or(Ok(()), fs::create_dir_all);
    // A cache that cannot be written costs time, not an answer.
    let _ = folder.and_then(|()| replace_file(entry, image));
}
