//! A file system that hangs, as a network mount does whose server has gone: whoever asks it waits.
//!
//! It speaks the kernel's FUSE protocol itself, over `/dev/fuse`: it answers until it meets the kind of request that it hangs at, and from
//! then on reads no request at all. So the kernel still lets a waiting process be killed, and everything ends when this is dropped.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// What is still answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hanging {
    /// Nothing but the mount itself: looking a name up, listing and asking for the free space hang.
    Everything,
    /// Every name but `missing` is a file of a page, which can be opened; reading and writing hang.
    Contents,
}

const INIT: u32 = 26;
const LOOKUP: u32 = 1;
const FORGET: u32 = 2;
const GETATTR: u32 = 3;
const SETATTR: u32 = 4;
const OPEN: u32 = 14;
const STATFS: u32 = 17;
const RELEASE: u32 = 18;
const GETXATTR: u32 = 22;
const FLUSH: u32 = 25;
const ACCESS: u32 = 34;
const INTERRUPT: u32 = 36;
/// Asked again as `GETATTR` by a kernel that hears it is not known.
const STATX: u32 = 52;

const ROOT: u64 = 1;
const FILE: u64 = 2;
/// The most that the kernel writes at once, with its heading.
const LARGEST: usize = 1 << 20;
const HEADING: usize = 40;
/// Seconds for which the kernel may keep attributes.
const KEPT_S: u64 = 3600;

/// A mount that hangs, until it is dropped.
#[derive(Debug)]
pub struct HangingMount {
    path: PathBuf,
    is_over: Arc<AtomicBool>,
    serving: Option<JoinHandle<()>>,
}

impl HangingMount {
    /// Mounts one on a folder, under a kind such as `s3fs`; nothing where this machine has no FUSE or does not let us mount, which is said.
    pub fn at(folder: &Path, kind: &str, hanging: Hanging) -> Option<Self> {
        match Self::mount(folder, kind, hanging) {
            Ok(mount) => Some(mount),
            Err(error) => {
                #[expect(clippy::print_stdout, reason = "a skipped test says so")]
                {
                    println!("SKIPPED: a file system that hangs cannot be mounted here: {error}");
                }
                None
            }
        }
    }

    fn mount(folder: &Path, kind: &str, hanging: Hanging) -> io::Result<Self> {
        let device = OpenOptions::new().read(true).write(true).open("/dev/fuse")?;
        let options = format!(
            "fd={},rootmode=40000,user_id=0,group_id=0,allow_other,subtype={kind}",
            device.as_raw_fd()
        );
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
        mount(Some("hanging"), folder, Some("fuse"), flags, Some(options.as_str()))?;
        let is_over = Arc::new(AtomicBool::new(false));
        let is_told = Arc::clone(&is_over);
        let serving = std::thread::spawn(move || serve(device, hanging, &is_told));
        Ok(Self { path: folder.to_owned(), is_over, serving: Some(serving) })
    }
}

impl Drop for HangingMount {
    /// Whoever still waits is answered with an error.
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        let _ = self.serving.take().map(JoinHandle::join);
        let _ = umount2(&self.path, MntFlags::MNT_DETACH);
        let _ = fs::remove_dir(&self.path);
    }
}

/// Answers, then only holds the device open, until it is over.
fn serve(mut device: File, hanging: Hanging, is_over: &AtomicBool) {
    let mut request = vec![0; LARGEST + 4096];
    let mut hangs = false;
    while !is_over.load(Ordering::Acquire) {
        if hangs {
            std::thread::sleep(std::time::Duration::from_millis(20));
            continue;
        }
        let mut ready = [PollFd::new(device.as_fd(), PollFlags::POLLIN)];
        if poll(&mut ready, PollTimeout::from(50u8)).is_ok_and(|count| count > 0) {
            match device.read(&mut request) {
                Ok(count) if count >= HEADING => hangs = !answer(&mut device, &request[..count], hanging),
                // Taken back before it was read.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Ok(_) | Err(_) => hangs = true,
            }
        }
    }
}

/// Answers one request, unless it is one to hang at.
fn answer(device: &mut File, request: &[u8], hanging: Hanging) -> bool {
    let number = |at: usize| u32::from_ne_bytes(request[at..at + 4].try_into().unwrap_or_default());
    let long = |at: usize| u64::from_ne_bytes(request[at..at + 8].try_into().unwrap_or_default());
    let (code, unique, node) = (number(4), long(8), long(16));
    let serves_names = hanging == Hanging::Contents;
    let (error, body) = match code {
        INIT => (0, start(number(HEADING + 4))),
        FORGET | INTERRUPT => return true,
        STATX => (libc::ENOSYS, Vec::new()),
        FLUSH | GETXATTR => (libc::ENOSYS, Vec::new()),
        GETATTR if node == ROOT || serves_names => (0, attributes(node)),
        SETATTR if serves_names => (0, attributes(node)),
        LOOKUP if serves_names && request[HEADING..].starts_with(b"missing\0") => (libc::ENOENT, Vec::new()),
        LOOKUP if serves_names => (0, entry()),
        OPEN if serves_names => (0, vec![0; 16]),
        STATFS if serves_names => (0, vec![0; 80]),
        RELEASE | ACCESS if serves_names => (0, Vec::new()),
        _ => return false,
    };
    let mut bytes = Vec::with_capacity(16 + body.len());
    bytes.extend(((16 + body.len()) as u32).to_ne_bytes());
    bytes.extend((-error).to_ne_bytes());
    bytes.extend(unique.to_ne_bytes());
    bytes.extend(body);
    device.write_all(&bytes).is_ok()
}

/// Version 7.31, a plain one.
fn start(kernel_minor: u32) -> Vec<u8> {
    let mut body = Vec::new();
    for number in [7, kernel_minor.min(31), 0, 0, 0, LARGEST as u32, 1] {
        body.extend(number.to_ne_bytes());
    }
    body.resize(64, 0);
    body
}

fn attributes(node: u64) -> Vec<u8> {
    let mut body = Vec::new();
    body.extend(KEPT_S.to_ne_bytes());
    body.extend([0; 8]);
    body.extend(about(node));
    body
}

fn entry() -> Vec<u8> {
    let mut body = Vec::new();
    for number in [FILE, 0, KEPT_S, KEPT_S, 0] {
        body.extend(number.to_ne_bytes());
    }
    body.extend(about(FILE));
    body
}

fn about(node: u64) -> Vec<u8> {
    let mode = if node == ROOT { libc::S_IFDIR | 0o777 } else { libc::S_IFREG | 0o666 };
    let mut body = Vec::new();
    for number in [node, 4096, 8, 0, 0, 0] {
        body.extend(number.to_ne_bytes());
    }
    for number in [0, 0, 0, mode, 1, 0, 0, 0, 4096, 0] {
        body.extend(number.to_ne_bytes());
    }
    body
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{RecvTimeoutError, channel};
    use std::time::Duration;

    use super::*;

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("bedplate-hanging-{}-{name}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    #[test]
    fn whoever_asks_waits_until_the_mount_is_gone() {
        for (name, hanging) in [("all", Hanging::Everything), ("contents", Hanging::Contents)] {
            let folder = folder(name);
            let Some(mount) = HangingMount::at(&folder, "s3fs", hanging) else { return };
            let path = folder.join("weights");
            if hanging == Hanging::Contents {
                assert_eq!(fs::metadata(&path).unwrap().len(), 4096);
                assert!(!folder.join("missing").exists());
            }
            let (tell, told) = channel();
            std::thread::spawn(move || tell.send(fs::read(path)));
            assert_eq!(told.recv_timeout(Duration::from_millis(200)).unwrap_err(), RecvTimeoutError::Timeout);
            drop(mount);
            assert!(told.recv().unwrap().is_err());
            assert!(!folder.exists());
        }
    }
}
