//! Memory that processes of one host share. It has no name in any file system, so nothing is left when its processes end.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;

/// A mapping of shared memory, all zero when new.
#[derive(Debug)]
pub(crate) struct Mapping {
    /// Of memory that this process made, to be sent to others.
    descriptor: Option<OwnedFd>,
    start: NonNull<u8>,
    bytes: usize,
}

#[expect(unsafe_code, reason = "the memory has no owner in one process")]
// SAFETY: the address is valid in all threads of this process; accesses are ordered by who uses the memory.
unsafe impl Send for Mapping {}
#[expect(unsafe_code, reason = "the memory has no owner in one process")]
// SAFETY: as above; `&Mapping` gives out addresses and no references.
unsafe impl Sync for Mapping {}

#[expect(unsafe_code, reason = "makes and maps shared memory")]
impl Mapping {
    /// New memory whose size no process can change, so that no access to it can fault.
    pub(crate) fn new(bytes: usize) -> io::Result<Self> {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // SAFETY: the name ends with a zero; the call makes a new descriptor or none.
        let raw = unsafe { libc::memfd_create(c"bedplate-comm".as_ptr(), flags) };
        if raw < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and has no other owner.
        let file = std::fs::File::from(unsafe { OwnedFd::from_raw_fd(raw) });
        file.set_len(bytes as u64)?;
        // SAFETY: a call on an open descriptor that only changes what may be done with it.
        let sealed = unsafe { libc::fcntl(raw, libc::F_ADD_SEALS, libc::F_SEAL_SHRINK | libc::F_SEAL_GROW) };
        if sealed < 0 {
            return Err(io::Error::last_os_error());
        }
        let descriptor = OwnedFd::from(file);
        let mut mapped = Self::map(descriptor.try_clone()?, bytes)?;
        mapped.descriptor = Some(descriptor);
        Ok(mapped)
    }

    /// Maps what another process made. The mapping needs no descriptor, so a process may have many.
    pub(crate) fn map(descriptor: OwnedFd, bytes: usize) -> io::Result<Self> {
        let file = std::fs::File::from(descriptor);
        if file.metadata()?.len() < bytes as u64 || bytes == 0 {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "shared memory is shorter than announced",
            ));
        }
        let descriptor = OwnedFd::from(file);
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let anywhere = std::ptr::null_mut();
        // SAFETY: a new range is asked for, so no other memory is touched.
        let start =
            unsafe { libc::mmap(anywhere, bytes, access, libc::MAP_SHARED, descriptor.as_raw_fd(), 0) };
        match NonNull::new(start.cast()) {
            Some(first) if start != libc::MAP_FAILED => Ok(Self { descriptor: None, start: first, bytes }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// None for memory that another process made.
    pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.descriptor.as_ref().map(AsFd::as_fd)
    }

    /// The address of a byte. Panics when `len` bytes from there on are not inside.
    pub(crate) fn at(&self, offset: usize, len: usize) -> *mut u8 {
        assert!(
            offset <= self.bytes && len <= self.bytes - offset,
            "{len} bytes at {offset} of {}",
            self.bytes
        );
        // SAFETY: the offset is inside the mapping.
        unsafe { self.start.as_ptr().add(offset) }
    }
}

#[expect(unsafe_code, reason = "gives back what was mapped")]
impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range was mapped with this size, and addresses of it are not used after their mapping.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}
