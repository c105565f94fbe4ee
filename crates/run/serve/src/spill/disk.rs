//! Blocks in files of a folder, written and read by a thread of its own.
//!
//! The engine waits for that thread as long as its disk makes progress. A disk that does not answer costs prefixes: nothing is asked of it until it
//! has done what it was asked before.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use bedplate_batching::BlockKey;
use bedplate_host::spawn_within;

use super::Tier;
use crate::events;

pub(super) const EXTENSION: &str = "kv";
/// How folders of engines begin, and the file in each that a living engine has locked.
const FOLDER: &str = "engine-";
const LOCK: &str = "lock";
/// Blocks on their way to the disk; a faster engine waits.
const MOST_WAITING: usize = 16;
/// How long a disk may take over one file before it counts as one that does not answer.
const PATIENCE: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Disk {
    pub(super) files: Tier<()>,
    queue: Arc<Queue>,
    /// Blocks that turned out not to be there.
    lost: Receiver<BlockKey>,
    thread: Option<thread::JoinHandle<()>>,
}

/// What is asked of the thread.
#[derive(Debug)]
enum Order {
    Write(BlockKey, Box<[u8]>),
    Read(BlockKey, Sender<Option<Box<[u8]>>>),
    Remove(BlockKey),
    /// Everything is to be removed.
    End,
}

#[derive(Debug, Default)]
struct Queue {
    orders: Mutex<Orders>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Orders {
    waiting: VecDeque<Order>,
    /// One has been taken out and is being carried out.
    is_working: bool,
    /// Carried out so far.
    done: u64,
    /// It did not answer when so many had been carried out.
    stuck_at: Option<u64>,
}

impl Orders {
    fn is_stuck(&self) -> bool {
        self.stuck_at == Some(self.done)
    }

    fn unfinished(&self) -> usize {
        self.waiting.len() + usize::from(self.is_working)
    }
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Orders> {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, order: Order) {
        self.lock().waiting.push_back(order);
        self.changed.notify_all();
    }

    /// Waits until few enough are unfinished. False where the disk does not answer.
    fn wait_for(&self, most: usize) -> bool {
        let mut orders = self.lock();
        while orders.unfinished() > most {
            if orders.is_stuck() {
                return false;
            }
            let before = orders.done;
            let (now, waited) =
                self.changed.wait_timeout(orders, PATIENCE).unwrap_or_else(PoisonError::into_inner);
            orders = now;
            if waited.timed_out() && orders.done == before {
                orders.stuck_at = Some(before);
            }
        }
        !orders.is_stuck()
    }

    fn next(&self) -> Order {
        let mut orders = self.lock();
        loop {
            if let Some(order) = orders.waiting.pop_front() {
                orders.is_working = true;
                return order;
            }
            orders = self.changed.wait(orders).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn is_done(&self) {
        let mut orders = self.lock();
        (orders.done, orders.is_working) = (orders.done + 1, false);
        drop(orders);
        self.changed.notify_all();
    }
}

impl Disk {
    pub(super) fn new(parent: &Path, most: usize) -> io::Result<Self> {
        let place = Place::make(parent)?;
        let (tell_lost, lost) = channel();
        let queue = Arc::<Queue>::default();
        let of_thread = queue.clone();
        let thread = spawn_within("spill", move || place.serve(&of_thread, &tell_lost))?;
        Ok(Self { files: Tier::new(most), queue, lost, thread: Some(thread) })
    }

    pub(super) fn put(&mut self, key: BlockKey, block: Box<[u8]>) {
        self.forget_lost();
        if !self.queue.wait_for(MOST_WAITING) {
            return;
        }
        self.queue.push(Order::Write(key, block));
        if let Some((oldest, ())) = self.files.put(key, ()) {
            self.queue.push(Order::Remove(oldest));
        }
    }

    pub(super) fn take(&mut self, key: BlockKey) -> Option<Box<[u8]>> {
        self.forget_lost();
        self.files.take(key)?;
        if self.is_stuck() {
            self.queue.push(Order::Remove(key));
            return None;
        }
        let (tell, told) = channel();
        self.queue.push(Order::Read(key, tell));
        if self.queue.wait_for(0) { told.try_recv().ok().flatten() } else { None }
    }

    pub(super) fn is_stuck(&self) -> bool {
        self.queue.lock().is_stuck()
    }

    fn forget_lost(&mut self) {
        while let Ok(key) = self.lost.try_recv() {
            self.files.take(key);
        }
    }

    /// Returns once everything is written.
    #[cfg(test)]
    pub(super) fn settle(&self) {
        let (tell, told) = channel();
        self.queue.push(Order::Read(BlockKey(u64::MAX), tell));
        let _ = told.recv();
    }
}

impl Drop for Disk {
    /// A disk that does not answer is not waited for.
    fn drop(&mut self) {
        self.queue.push(Order::End);
        if self.queue.wait_for(0)
            && let Some(thread) = self.thread.take()
        {
            let _ = thread.join();
        }
    }
}

/// The thread's own: a folder of this engine alone.
#[derive(Debug)]
struct Place {
    folder: PathBuf,
    /// The newest block could not be written.
    is_failing: bool,
    /// Locked as long as the engine lives.
    _lock: File,
}

impl Place {
    fn make(parent: &Path) -> io::Result<Self> {
        // A name that is taken is that of an engine that lives, perhaps in another container with the same process number.
        let name = |number: u32| parent.join(format!("{FOLDER}{}-{number}", std::process::id()));
        let mut number = 0;
        while name(number).exists() {
            number += 1;
        }
        let folder = name(number);
        fs::create_dir(&folder)?;
        let lock = File::create(folder.join(LOCK))?;
        lock.try_lock().map_err(io::Error::from)?;
        Ok(Self { folder, is_failing: false, _lock: lock })
    }

    fn serve(mut self, queue: &Queue, tell_lost: &Sender<BlockKey>) {
        loop {
            match queue.next() {
                Order::Write(key, block) => {
                    if !self.write(key, &block) {
                        let _ = tell_lost.send(key);
                    }
                }
                Order::Read(key, tell) => {
                    let path = self.path(key);
                    let _ = tell.send(fs::read(&path).ok().map(Vec::into_boxed_slice));
                    let _ = fs::remove_file(path);
                }
                Order::Remove(key) => drop(fs::remove_file(self.path(key))),
                Order::End => {
                    let _ = fs::remove_dir_all(&self.folder);
                    return queue.is_done();
                }
            }
            queue.is_done();
        }
    }

    fn path(&self, key: BlockKey) -> PathBuf {
        self.folder.join(format!("{:016x}.{EXTENSION}", key.0))
    }

    /// A full disk costs a prefix, not an answer. It is said once, however many blocks it costs.
    fn write(&mut self, key: BlockKey, block: &[u8]) -> bool {
        let outcome = write_private(&self.path(key), block);
        if let Err(error) = &outcome {
            if !std::mem::replace(&mut self.is_failing, true) {
                events::spill_failed(error);
            }
            let _ = fs::remove_file(self.path(key));
            return false;
        }
        self.is_failing = false;
        true
    }
}

/// Keys and values tell what was asked, so nobody else may read them.
fn write_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?.write_all(bytes)
}

/// Removes the folders of engines that are gone.
pub(super) fn remove_what_was_left(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)?.flatten() {
        let is_of_engine = entry.file_name().to_string_lossy().starts_with(FOLDER);
        if let (true, Ok(lock)) = (is_of_engine, File::open(entry.path().join(LOCK)))
            && lock.try_lock().is_ok()
        {
            fs::remove_dir_all(entry.path())?;
        }
    }
    Ok(())
}
