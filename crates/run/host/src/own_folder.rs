//! A folder of ours that others may write to: looked at and cleared without following a link or entering a mount.
//!
//! A user may have mounted a file system in it that does not answer, or put a link there to what is not theirs. Neither is asked for
//! anything: the kernel refuses the step into it.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, OpenHow, ResolveFlag, open, openat, openat2};
use nix::sys::stat::{Mode, SFlag, fstatat};
use nix::unistd::{UnlinkatFlags, unlinkat};

/// Folders within folders that are entered; what lies deeper stays where it is.
const DEEPEST: usize = 64;

#[derive(Debug)]
pub struct OwnFolder(OwnedFd);

impl OwnFolder {
    /// Opens a folder whose own folder is ours alone.
    pub fn open(path: &Path) -> io::Result<Self> {
        let (Some(above), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let above = if above.as_os_str().is_empty() { Path::new(".") } else { above };
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        Self(open(above, flags, Mode::empty())?).enter(name)
    }

    fn enter(&self, name: &OsStr) -> io::Result<Self> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let resolve = ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_NO_XDEV;
        let how = OpenHow::new().flags(flags).resolve(resolve);
        let opened = match openat2(&self.0, name, how) {
            // Before Linux 5.6, or where a container forbids it: links at least are refused.
            Err(Errno::ENOSYS | Errno::EPERM) => {
                openat(&self.0, name, flags | OFlag::O_NOFOLLOW, Mode::empty())
            }
            opened => opened,
        };
        Ok(Self(opened?))
    }

    /// What lies in it.
    pub fn names(&self) -> io::Result<Vec<OsString>> {
        let entries = fs::read_dir(format!("/proc/self/fd/{}", self.0.as_raw_fd()))?;
        entries.map(|entry| Ok(entry?.file_name())).collect()
    }

    /// Removes a file, a link or a folder with all that is in it.
    pub fn remove(&self, name: &OsStr) -> io::Result<()> {
        self.remove_to(name, DEEPEST)
    }

    fn remove_to(&self, name: &OsStr, depth: usize) -> io::Result<()> {
        match unlinkat(&self.0, name, UnlinkatFlags::NoRemoveDir) {
            Err(Errno::EISDIR | Errno::EPERM) if depth > 0 => {}
            outcome => return Ok(outcome?),
        }
        let folder = self.enter(name)?;
        for inner in folder.names()? {
            folder.remove_to(&inner, depth - 1)?;
        }
        Ok(unlinkat(&self.0, name, UnlinkatFlags::RemoveDir)?)
    }

    /// The sizes of all files in it, together.
    pub fn bytes(&self) -> u64 {
        self.bytes_to(DEEPEST)
    }

    fn bytes_to(&self, depth: usize) -> u64 {
        let names = self.names().unwrap_or_default();
        names.iter().map(|name| self.bytes_of(name, depth)).sum()
    }

    fn bytes_of(&self, name: &OsStr, depth: usize) -> u64 {
        match self.enter(name) {
            Ok(folder) if depth > 0 => folder.bytes_to(depth - 1),
            // A file: asking for its facts enters no mount, because one on a folder was refused above.
            Err(error) if error.raw_os_error() == Some(Errno::ENOTDIR as i32) => {
                let facts = fstatat(&self.0, name, AtFlags::AT_SYMLINK_NOFOLLOW | AtFlags::AT_NO_AUTOMOUNT);
                let is_file = |mode| SFlag::from_bits_truncate(mode).contains(SFlag::S_IFREG);
                facts
                    .ok()
                    .filter(|facts| is_file(facts.st_mode))
                    .map_or(0, |facts| facts.st_size.unsigned_abs())
            }
            Ok(_) | Err(_) => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use bedplate_testkit::{Hanging, HangingMount};

    use super::*;

    #[test]
    fn it_is_measured_and_cleared_beside_links_and_mounts() {
        let ours = tempfile::tempdir().unwrap();
        let [run, other] = ["run", "other"].map(|name| ours.path().join(name));
        fs::create_dir_all(run.join("a/b/c")).unwrap();
        fs::create_dir_all(run.join("mount")).unwrap();
        fs::create_dir(&other).unwrap();
        for file in [run.join("a/b/file"), run.join("file"), other.join("kept")] {
            fs::write(file, [b'x'; 100]).unwrap();
        }
        std::os::unix::fs::symlink(&other, run.join("link")).unwrap();
        std::os::unix::fs::symlink(&other, run.join("a/link")).unwrap();
        std::os::unix::fs::symlink(&run, ours.path().join("linked")).unwrap();
        assert!(OwnFolder::open(&ours.path().join("linked")).is_err());
        let mount = HangingMount::at(&run.join("mount"), "s3fs", Hanging::Everything);
        let folder = OwnFolder::open(&run).unwrap();
        assert_eq!(folder.bytes(), 200);
        for name in folder.names().unwrap() {
            let outcome = folder.remove(&name);
            let stays = mount.is_some() && name == "mount";
            assert_eq!(outcome.is_err(), stays, "{name:?}: {outcome:?}");
        }
        assert!(other.join("kept").exists());
        if let Some(mount) = mount {
            assert_eq!(folder.names().unwrap(), ["mount"]);
            drop(mount);
        }
        let Some(_mount) = HangingMount::at(&run, "s3fs", Hanging::Everything) else { return };
        assert_eq!(OwnFolder::open(&run).unwrap_err().raw_os_error(), Some(Errno::EXDEV as i32));
    }
}
