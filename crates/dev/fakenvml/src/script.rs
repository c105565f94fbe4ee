//! The script, read again when its file changes.

#![expect(unsafe_code, reason = "dladdr tells where this library was loaded from")]

use std::ffi::{CStr, OsStr, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use serde_json::{Value, json};

/// How old the script may be; looking costs a system call.
const FRESH: Duration = Duration::from_millis(20);

pub(crate) struct Script {
    path: PathBuf,
    changed: Option<SystemTime>,
    looked: Instant,
    pub(crate) value: Value,
    pub(crate) started: Instant,
    /// Events that have been delivered.
    pub(crate) delivered: usize,
}

/// The script as it is now.
pub(crate) fn script() -> MutexGuard<'static, Script> {
    static SCRIPT: OnceLock<Mutex<Script>> = OnceLock::new();
    let script = SCRIPT.get_or_init(|| Mutex::new(Script::open()));
    let mut script = script.lock().unwrap_or_else(PoisonError::into_inner);
    script.look();
    script
}

impl Script {
    fn open() -> Self {
        let path = own_path().with_file_name(super::SCRIPT);
        let now = Instant::now();
        let looked = now.checked_sub(FRESH).unwrap_or(now);
        // Without a script beside it, it is a host like a p5.48xlarge.
        let value = json!({ "gpus": vec![json!({}); 8] });
        let mut script = Self { path, changed: None, looked, value, started: now, delivered: 0 };
        script.look();
        script.delivered = script.events().len();
        script
    }

    fn look(&mut self) {
        if self.looked.elapsed() < FRESH && self.changed.is_some() {
            return;
        }
        self.looked = Instant::now();
        let changed = std::fs::metadata(&self.path).and_then(|metadata| metadata.modified()).ok();
        if changed == self.changed {
            return;
        }
        let text = std::fs::read_to_string(&self.path).unwrap_or_default();
        if let Ok(value) = serde_json::from_str(&text) {
            self.value = value;
            self.changed = changed;
        }
    }

    pub(crate) fn gpus(&self) -> &[Value] {
        self.value["gpus"].as_array().map_or(&[], Vec::as_slice)
    }

    pub(crate) fn events(&self) -> &[Value] {
        self.value["events"].as_array().map_or(&[], Vec::as_slice)
    }
}

/// The file that this code was loaded from.
fn own_path() -> PathBuf {
    let mut info = libc::Dl_info {
        dli_fname: std::ptr::null(),
        dli_fbase: std::ptr::null_mut(),
        dli_sname: std::ptr::null(),
        dli_saddr: std::ptr::null_mut(),
    };
    // SAFETY: the address is that of a function of this library, and `info` outlives the call.
    let found = unsafe { libc::dladdr(own_path as *const c_void, &raw mut info) };
    if found == 0 || info.dli_fname.is_null() {
        return PathBuf::new();
    }
    // SAFETY: dladdr succeeded, so the name is a C string that lives as long as the library.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    Path::new(OsStr::from_bytes(name.to_bytes())).to_owned()
}
