//! File systems: how full they are, and whether they answer.
//!
//! A file system that hangs holds up whoever asks it, so each is asked by a thread of its own, one at a time.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::statvfs::statvfs;

use crate::collectors::{Collector, Failed};
use crate::metrics::storage as metric;
use crate::root::Root;
use crate::series::{Naming, SeriesBatch, Spot};

/// Kinds of file systems that can fill up, break or hang.
const WATCHED: [&str; 13] = [
    "ext4",
    "xfs",
    "btrfs",
    "zfs",
    "lustre",
    "nfs",
    "nfs4",
    "ceph",
    "gpfs",
    "wekafs",
    "beegfs",
    "fuse.mountpoint-s3",
    "fuse.s3fs",
];
const ON_DISK: [&str; 4] = ["ext4", "xfs", "btrfs", "zfs"];
/// More than a node has; a host with thousands of mounts of containers is not asked about each.
const MOST_MOUNTS: usize = 64;
/// How often each is asked.
const EVERY: Duration = Duration::from_secs(5);
/// Of a longer time between two looks only this much counts as waiting.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// One line of `/proc/self/mounts`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    pub device: String,
    pub folder: String,
    pub kind: String,
    pub is_read_only: bool,
}

/// The mounts that are watched: the first of each device.
pub fn watched_mounts(text: &str) -> Vec<Mount> {
    let mut found: Vec<Mount> = Vec::new();
    for mount in text.lines().filter_map(mount) {
        let is_known = found.iter().any(|known| known.device == mount.device || known.folder == mount.folder);
        if WATCHED.contains(&mount.kind.as_str()) && !is_known && found.len() < MOST_MOUNTS {
            found.push(mount);
        }
    }
    found
}

fn mount(line: &str) -> Option<Mount> {
    let mut words = line.split_whitespace();
    let (device, folder, kind) = (words.next()?, words.next()?, words.next()?);
    let is_read_only = words.next()?.split(',').any(|option| option == "ro");
    Some(Mount { device: unescaped(device), folder: unescaped(folder), kind: kind.to_owned(), is_read_only })
}

/// Spaces and the like are written as `\040`.
fn unescaped(text: &str) -> String {
    let mut out = Vec::new();
    let mut bytes = text.as_bytes();
    while let Some((first, rest)) = bytes.split_first() {
        let code = rest.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        let code = code.and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match (first, code) {
            (b'\\', Some(code)) => {
                out.push(code);
                bytes = &rest[3..];
            }
            _ => {
                out.push(*first);
                bytes = rest;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// What a file system says about itself.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Space {
    pub(crate) size: f64,
    pub(crate) available: f64,
    pub(crate) files_free: f64,
}

/// Asks a file system; tests put one in that hangs.
pub(crate) type Ask = Arc<dyn Fn(&Path) -> io::Result<Space> + Send + Sync>;

pub(crate) fn ask_kernel(path: &Path) -> io::Result<Space> {
    let told = statvfs(path)?;
    let unit = told.fragment_size() as f64;
    Ok(Space {
        size: told.blocks() as f64 * unit,
        available: told.blocks_available() as f64 * unit,
        files_free: told.files_available() as f64,
    })
}

pub(crate) struct Mounts {
    root: Root,
    naming: Naming,
    ask: Ask,
    asked: BTreeMap<String, Asked>,
}

struct Asked {
    since: Instant,
    answer: Option<Receiver<io::Result<Space>>>,
    /// How long the answer has been waited for, as of the last look. Time in which nobody looked does not count: the whole
    /// exporter may have been stopped.
    waited: Duration,
    looked: Instant,
    space: Option<Space>,
    /// It was writable when it was first seen.
    was_writable: bool,
}

impl Asked {
    fn count_wait(&mut self, is_waiting: bool) {
        let passed = std::mem::replace(&mut self.looked, Instant::now()).elapsed().min(LONGEST_PAUSE);
        self.waited = if is_waiting { self.waited + passed } else { Duration::ZERO };
    }
}

impl Mounts {
    pub(crate) fn new(root: Root, naming: Naming, ask: Ask) -> Self {
        Self { root, naming, ask, asked: BTreeMap::new() }
    }

    fn ask(&self, folder: &str) -> Option<Receiver<io::Result<Space>>> {
        let (answer, receiver) = sync_channel(1);
        let (ask, path): (Ask, PathBuf) = (Arc::clone(&self.ask), self.root.path(folder));
        let asking = thread::Builder::new().name("mount".into()).stack_size(64 << 10);
        asking.spawn(move || drop(answer.try_send(ask(&path)))).ok()?;
        Some(receiver)
    }

    fn look(&mut self, mount: &Mount) {
        let known = self.asked.get_mut(&mount.folder);
        match known {
            None => {
                let answer = self.ask(&mount.folder);
                let was_writable = !mount.is_read_only;
                let now = Instant::now();
                let asked = Asked {
                    since: now,
                    answer,
                    waited: Duration::ZERO,
                    looked: now,
                    space: None,
                    was_writable,
                };
                self.asked.insert(mount.folder.clone(), asked);
            }
            Some(asked) => {
                let told = asked.answer.as_ref().map(Receiver::try_recv);
                asked.count_wait(matches!(told, Some(Err(TryRecvError::Empty))));
                match told {
                    Some(Ok(space)) => (asked.answer, asked.space) = (None, space.ok()),
                    Some(Err(TryRecvError::Empty)) => return,
                    Some(Err(TryRecvError::Disconnected)) => (asked.answer, asked.space) = (None, None),
                    None => {}
                }
                if asked.answer.is_none() && asked.since.elapsed() >= EVERY {
                    let answer = self.ask(&mount.folder);
                    if let Some(asked) = self.asked.get_mut(&mount.folder) {
                        (asked.since, asked.answer) = (Instant::now(), answer);
                    }
                }
            }
        }
    }

    fn put(&self, mount: &Mount, to: &mut SeriesBatch) {
        let Some(asked) = self.asked.get(&mount.folder) else { return };
        let labels = self.naming.labels(&[
            ("device", &mount.device),
            ("fstype", &mount.kind),
            ("mountpoint", &mount.folder),
        ]);
        let spot = Spot::Mount(mount.folder.as_str().into());
        // A thread that has not been scheduled yet is no stall.
        let waiting = asked.waited.as_secs_f64();
        to.put(&metric::MOUNT_STALLED_SECONDS, &labels, &spot, if waiting < 1.0 { 0.0 } else { waiting });
        if ON_DISK.contains(&mount.kind.as_str()) && asked.was_writable {
            to.put(&metric::FILESYSTEM_READONLY, &labels, &spot, f64::from(u8::from(mount.is_read_only)));
        }
        if let Some(space) = asked.space {
            to.put(&metric::FILESYSTEM_SIZE, &labels, &spot, space.size);
            to.put(&metric::FILESYSTEM_AVAILABLE, &labels, &spot, space.available);
            to.put(&metric::FILESYSTEM_FILES_FREE, &labels, &spot, space.files_free);
        }
    }
}

impl Collector for Mounts {
    fn name(&self) -> &'static str {
        "filesystem"
    }

    fn collect(&mut self, to: &mut SeriesBatch) -> Result<(), Failed> {
        let mounts = watched_mounts(&self.root.read("proc/self/mounts").unwrap_or_default());
        self.asked.retain(|folder, _| mounts.iter().any(|mount| mount.folder == *folder));
        for mount in &mounts {
            self.look(mount);
            self.put(mount, to);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use bedplate_testkit::wait_until;

    use super::*;
    use crate::HostnameLabel;

    #[test]
    fn mounts_that_can_hang_or_fill_up_are_watched() {
        let text = "proc /proc proc rw 0 0\n/dev/nvme0n1p1 / ext4 rw,relatime 0 0\n/dev/nvme0n1p1 /var/lib ext4 rw 0 0\n10.0.0.1@tcp:/fsx /fs\\040x lustre rw,flock 0 0\n/dev/sdb /ro xfs ro 0 0\n";
        let found = watched_mounts(text);
        let folders: Vec<&str> = found.iter().map(|mount| mount.folder.as_str()).collect();
        assert_eq!(folders, ["/", "/fs x", "/ro"]);
        assert!(found[2].is_read_only);
    }

    #[test]
    fn an_exporter_that_was_stopped_takes_no_mount_for_stalled() {
        let began = Instant::now().checked_sub(Duration::from_secs(60)).expect("the machine is up that long");
        let mut asked = Asked {
            since: began,
            answer: None,
            waited: Duration::ZERO,
            looked: began,
            space: None,
            was_writable: true,
        };
        asked.count_wait(true);
        assert_eq!(asked.waited, LONGEST_PAUSE);
        asked.count_wait(false);
        assert_eq!(asked.waited, Duration::ZERO);
    }

    #[test]
    fn a_mount_that_hangs_is_told_while_others_answer() {
        let folder = std::env::temp_dir().join(format!("bedplate-mounts-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("proc/self")).unwrap();
        std::fs::write(folder.join("proc/self/mounts"), "a /good ext4 rw 0 0\nb /bad nfs4 rw 0 0\n").unwrap();
        let gate = Arc::new(Mutex::new(()));
        let held = gate.lock().unwrap();
        let (waiting, root) = (Arc::clone(&gate), Root::at(&folder));
        let ask = move |path: &Path| {
            if path.ends_with("bad") {
                drop(waiting.lock());
            }
            Ok(Space { size: 10.0, available: 5.0, files_free: 1.0 })
        };
        let naming = Naming::new("n1", HostnameLabel::Capital);
        let mut mounts = Mounts::new(root, naming, Arc::new(ask));
        let (mut stalled, mut answered) = (0.0, false);
        wait_until("the one is told and the other answers", || {
            let mut batch = SeriesBatch::default();
            mounts.collect(&mut batch).unwrap();
            for series in &batch.0 {
                let is_bad = series.spot == Spot::Mount("/bad".into());
                match series.metric.name {
                    "bedplate_mount_stalled_seconds" if is_bad => stalled = series.value,
                    "node_filesystem_avail_bytes" => answered |= !is_bad,
                    _ => {}
                }
            }
            stalled >= 1.0 && answered
        });
        drop(held);
        std::fs::remove_dir_all(folder).unwrap();
    }
}
