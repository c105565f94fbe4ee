//! The file layer itself: SQLite's C interface, implemented by logging calls and forwarding them.
//!
//! SQLite provides memory for a [`File`] with the system's own file after it, and calls the functions below with it from
//! `open` until `close`, never concurrently for one file. The `SAFETY` comments rely on that contract.
#![expect(unsafe_code, reason = "SQLite's file layers are C structures with C functions")]

use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rusqlite::ffi;

use crate::disk::{Fault, State};

/// What SQLite sees as an open file. The system's file follows it in memory.
#[repr(C)]
struct File {
    base: ffi::sqlite3_file,
    /// Absent for an unnamed temporary file, whose calls are only forwarded.
    tracked: *mut Tracked,
}

struct Tracked {
    path: PathBuf,
    state: Arc<Mutex<State>>,
    /// The system's layer syncs the folder with the first sync of a log or journal that it created.
    syncs_folder: bool,
}

/// The state of the whole layer.
struct Layer {
    system: *mut ffi::sqlite3_vfs,
    state: Arc<Mutex<State>>,
}

/// Registers a layer over the system's default one, for as long as the process lives.
pub(crate) fn register(name: &str, state: Arc<Mutex<State>>) {
    // SAFETY: a null name asks for the default layer; the answer lives as long as the process.
    let system = unsafe { ffi::sqlite3_vfs_find(std::ptr::null()) };
    assert!(!system.is_null(), "SQLite has a default file layer");
    // SAFETY: it is not null, and SQLite changes only `pNext` of a registered layer.
    let mut layer = unsafe { std::ptr::read(system) };
    let own = Box::new(Layer { system, state });
    layer.iVersion = layer.iVersion.min(2);
    layer.szOsFile += size_of::<File>() as c_int;
    layer.pNext = std::ptr::null_mut();
    layer.zName = CString::new(name).expect("a name has no zero byte").into_raw();
    layer.pAppData = Box::into_raw(own).cast();
    layer.xOpen = Some(open);
    layer.xDelete = Some(delete);
    let layer = Box::into_raw(Box::new(layer));
    // SAFETY: the layer and everything it points to are never freed.
    let result = unsafe { ffi::sqlite3_vfs_register(layer, 0) };
    assert_eq!(result, ffi::SQLITE_OK, "SQLite takes a layer");
}

// The system's functions that are not replaced ignore which layer they are called with, except for its longest
// path, which is the same.

/// # Safety
/// `layer` is one of ours.
unsafe fn layer_of<'a>(layer: *mut ffi::sqlite3_vfs) -> &'a Layer {
    // SAFETY: `register` put a `Layer` there, which is never freed or changed.
    unsafe { &*(*layer).pAppData.cast::<Layer>() }
}

/// # Safety
/// `name` is null or a C string.
unsafe fn path_of(name: *const c_char) -> Option<PathBuf> {
    if name.is_null() {
        return None;
    }
    // SAFETY: the caller guarantees a C string.
    let name = unsafe { CStr::from_ptr(name) };
    Some(Path::new(OsStr::from_bytes(name.to_bytes())).to_owned())
}

/// # Safety
/// `file` was given to `open` of this layer.
unsafe fn system_file(file: *mut ffi::sqlite3_file) -> *mut ffi::sqlite3_file {
    // SAFETY: `szOsFile` reserves room for a `File` followed by the system's file.
    unsafe { file.cast::<File>().add(1).cast() }
}

/// # Safety
/// `file` was opened by this layer and is not closed; there is no other reference to it.
unsafe fn tracked<'a>(file: *mut ffi::sqlite3_file) -> Option<&'a mut Tracked> {
    // SAFETY: `open` has put null or a live box there, and only `close` removes it.
    unsafe { (*file.cast::<File>()).tracked.as_mut() }
}

impl Tracked {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

unsafe extern "C" fn open(
    layer: *mut ffi::sqlite3_vfs,
    name: ffi::sqlite3_filename,
    file: *mut ffi::sqlite3_file,
    flags: c_int,
    out_flags: *mut c_int,
) -> c_int {
    // SAFETY: SQLite passes the layer that it was given, and its own name or none.
    let (own, path) = unsafe { (layer_of(layer), path_of(name)) };
    let ours = file.cast::<File>();
    // SAFETY: SQLite gives `szOsFile` bytes; no methods means that there is nothing to close.
    unsafe { (*ours).base.pMethods = std::ptr::null() };
    // SAFETY: the system's layer is complete, and gets the memory that it asked for.
    let result = unsafe {
        let open = (*own.system).xOpen.expect("every layer opens files");
        open(own.system, name, system_file(file), flags, out_flags)
    };
    if result != ffi::SQLITE_OK {
        return result;
    }
    let tracked = path.map(|path| {
        if flags & ffi::SQLITE_OPEN_CREATE != 0 {
            own.state.lock().unwrap_or_else(PoisonError::into_inner).log.create(&path);
        }
        let is_log = flags & (ffi::SQLITE_OPEN_WAL | ffi::SQLITE_OPEN_MAIN_JOURNAL) != 0;
        let syncs_folder = is_log && flags & ffi::SQLITE_OPEN_CREATE != 0;
        Box::into_raw(Box::new(Tracked { path, state: own.state.clone(), syncs_folder }))
    });
    // SAFETY: as above; from here on the file counts as open.
    unsafe {
        (*ours).tracked = tracked.unwrap_or(std::ptr::null_mut());
        (*ours).base.pMethods = &raw const METHODS;
    }
    ffi::SQLITE_OK
}

unsafe extern "C" fn delete(layer: *mut ffi::sqlite3_vfs, name: *const c_char, sync_folder: c_int) -> c_int {
    // SAFETY: SQLite passes the layer that it was given, and a name.
    let (own, path) = unsafe { (layer_of(layer), path_of(name)) };
    // SAFETY: the system's layer is complete.
    let result = unsafe {
        let delete = (*own.system).xDelete.expect("every layer deletes files");
        delete(own.system, name, 0)
    };
    if let (ffi::SQLITE_OK, Some(path)) = (result, path) {
        let mut state = own.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.log.delete(&path);
        if sync_folder != 0 {
            state.log.sync_folder();
        }
    }
    result
}

/// Functions that only forward to the system's file.
macro_rules! passed_on {
    ($($name:ident $method:ident ($($argument:ident: $type:ty),*) $(-> $result:ty)?;)*) => {$(
        unsafe extern "C" fn $name(file: *mut ffi::sqlite3_file, $($argument: $type),*) $(-> $result)? {
            // SAFETY: the file is open, so the system's file behind it is, and its methods are complete.
            unsafe {
                let system = system_file(file);
                ((*(*system).pMethods).$method.expect("the system's file has it"))(system, $($argument),*)
            }
        }
    )*};
}

passed_on! {
    close_system xClose() -> c_int;
    read xRead(to: *mut c_void, count: c_int, offset: i64) -> c_int;
    write_system xWrite(from: *const c_void, count: c_int, offset: i64) -> c_int;
    truncate_system xTruncate(size: i64) -> c_int;
    file_size xFileSize(size: *mut i64) -> c_int;
    lock xLock(level: c_int) -> c_int;
    unlock xUnlock(level: c_int) -> c_int;
    check_reserved_lock xCheckReservedLock(result: *mut c_int) -> c_int;
    file_control xFileControl(operation: c_int, argument: *mut c_void) -> c_int;
    sector_size xSectorSize() -> c_int;
    device_characteristics xDeviceCharacteristics() -> c_int;
    shm_map xShmMap(page: c_int, size: c_int, extend: c_int, to: *mut *mut c_void) -> c_int;
    shm_lock xShmLock(offset: c_int, count: c_int, flags: c_int) -> c_int;
    shm_barrier xShmBarrier();
    shm_unmap xShmUnmap(delete: c_int) -> c_int;
}

unsafe extern "C" fn close(file: *mut ffi::sqlite3_file) -> c_int {
    let ours = file.cast::<File>();
    // SAFETY: the box was made by `open`, and SQLite closes a file once.
    unsafe {
        if !(*ours).tracked.is_null() {
            drop(Box::from_raw((*ours).tracked));
        }
        close_system(file)
    }
}

unsafe extern "C" fn write(
    file: *mut ffi::sqlite3_file,
    from: *const c_void,
    count: c_int,
    offset: i64,
) -> c_int {
    // SAFETY: the file is open.
    let Some(tracked) = (unsafe { tracked(file) }) else {
        // SAFETY: the arguments are SQLite's own.
        return unsafe { write_system(file, from, count, offset) };
    };
    let mut size = 0;
    // SAFETY: the file is open.
    unsafe { file_size(file, &raw mut size) };
    let is_longer = offset + i64::from(count) > size;
    let fails = |fault| fault == Fault::WriteError || (fault == Fault::Full && is_longer);
    let fault = tracked.state().fails(fails);
    // On a full disk part of the write succeeds.
    let written = match fault {
        None => count,
        Some(Fault::Full) => count / 2,
        Some(_) => 0,
    };
    // SAFETY: `from` has at least `count` bytes, of which no more are used.
    let result = unsafe { write_system(file, from, written, offset) };
    if result != ffi::SQLITE_OK {
        return result;
    }
    // SAFETY: as above.
    let bytes = unsafe { std::slice::from_raw_parts(from.cast::<u8>(), written as usize) };
    tracked.state().log.write(&tracked.path, offset as usize, bytes);
    match fault {
        None => ffi::SQLITE_OK,
        Some(Fault::Full) => ffi::SQLITE_FULL,
        Some(_) => ffi::SQLITE_IOERR_WRITE,
    }
}

unsafe extern "C" fn truncate(file: *mut ffi::sqlite3_file, size: i64) -> c_int {
    // SAFETY: the file is open.
    let result = unsafe { truncate_system(file, size) };
    // SAFETY: the file is open.
    if let (ffi::SQLITE_OK, Some(tracked)) = (result, unsafe { tracked(file) }) {
        tracked.state().log.truncate(&tracked.path, size as usize);
    }
    result
}

/// The real disk is not synced: the log decides what is durable.
unsafe extern "C" fn sync(file: *mut ffi::sqlite3_file, _flags: c_int) -> c_int {
    // SAFETY: the file is open.
    let Some(tracked) = (unsafe { tracked(file) }) else { return ffi::SQLITE_OK };
    let mut state = tracked.state.lock().unwrap_or_else(PoisonError::into_inner);
    if state.fails(|fault| fault == Fault::SyncError).is_some() {
        state.log.fail_sync(&tracked.path);
        return ffi::SQLITE_IOERR_FSYNC;
    }
    state.log.sync(&tracked.path);
    if std::mem::take(&mut tracked.syncs_folder) {
        state.log.sync_folder();
    }
    ffi::SQLITE_OK
}

/// Version 2: without memory-mapped pages, whose changes could not be logged.
static METHODS: ffi::sqlite3_io_methods = ffi::sqlite3_io_methods {
    iVersion: 2,
    xClose: Some(close),
    xRead: Some(read),
    xWrite: Some(write),
    xTruncate: Some(truncate),
    xSync: Some(sync),
    xFileSize: Some(file_size),
    xLock: Some(lock),
    xUnlock: Some(unlock),
    xCheckReservedLock: Some(check_reserved_lock),
    xFileControl: Some(file_control),
    xSectorSize: Some(sector_size),
    xDeviceCharacteristics: Some(device_characteristics),
    xShmMap: Some(shm_map),
    xShmLock: Some(shm_lock),
    xShmBarrier: Some(shm_barrier),
    xShmUnmap: Some(shm_unmap),
    xFetch: None,
    xUnfetch: None,
};
