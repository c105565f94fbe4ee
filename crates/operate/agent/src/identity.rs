//! Who a job runs as: the agent's own user, or, where the agent is root, the user who submitted the job.

#![allow(unsafe_code, reason = "the groups of one thread alone have no safe call")]

use std::ffi::CString;
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::{DirBuilderExt, fchown, lchown};
use std::path::Path;

use bedplate_host::{LinkPolicy, Opening, open_regular_for};
use nix::unistd::{Gid, Uid, User, geteuid, getgrouplist, setfsgid, setfsuid};
use serde::{Deserialize, Serialize};

/// Whose rights jobs have on a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobUsers {
    /// The agent's.
    Own,
    /// Those of the user who submitted the job, who must be known on the node. Only root can become others.
    Submitters {
        /// Jobs of root are refused otherwise.
        allows_root: bool,
    },
}

impl JobUsers {
    /// Submitters where this process is root.
    pub fn here(allows_root: bool) -> Self {
        if geteuid().is_root() { JobUsers::Submitters { allows_root } } else { JobUsers::Own }
    }
}

/// A user as the host knows them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Identity {
    pub(crate) name: String,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) groups: Vec<u32>,
    pub(crate) home: String,
    pub(crate) shell: String,
}

impl Identity {
    /// Looks a user up; nothing when that is root, for whom nothing changes. Takes as long as the host's user database.
    pub(crate) fn find(name: &str, allows_root: bool) -> Result<Option<Self>, String> {
        let failed = |error| format!("user `{name}` cannot be looked up on this node: {error}");
        let Some(user) = User::from_name(name).map_err(failed)? else {
            return Err(format!("user `{name}` does not exist on this node"));
        };
        match (user.uid.is_root(), allows_root) {
            (true, true) => return Ok(None),
            (true, false) => {
                return Err(format!("jobs of `{name}`, which is root here, are refused on this node"));
            }
            (false, _) => {}
        }
        let own_name = CString::new(name).map_err(|_| format!("`{name:?}` is not a user name"))?;
        let groups = getgrouplist(&own_name, user.gid).map_err(failed)?;
        Ok(Some(Self {
            name: user.name,
            uid: user.uid.as_raw(),
            gid: user.gid.as_raw(),
            groups: groups.into_iter().map(Gid::as_raw).collect(),
            home: user.dir.display().to_string(),
            shell: user.shell.display().to_string(),
        }))
    }

    /// From now on this thread has the user's rights to files, and it must end after that: there is no way back. Other
    /// threads stay as they are.
    pub(crate) fn assume_for_files(&self) -> io::Result<()> {
        let groups: Vec<libc::gid_t> = self.groups.clone();
        // SAFETY: the kernel reads as many numbers as the slice has. Its own call, unlike the one of the C library, changes
        // the calling thread alone.
        if unsafe { libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) } != 0 {
            return Err(io::Error::last_os_error());
        }
        setfsgid(Gid::from_raw(self.gid));
        setfsuid(Uid::from_raw(self.uid));
        // The calls answer with what was before; a second one tells whether the first had an effect.
        let is_so = setfsuid(Uid::from_raw(self.uid)).as_raw() == self.uid
            && setfsgid(Gid::from_raw(self.gid)).as_raw() == self.gid;
        if is_so { Ok(()) } else { Err(io::ErrorKind::PermissionDenied.into()) }
    }

    /// Makes a directory that belongs to the user, inside one that does not.
    pub(crate) fn make_directory(&self, path: &Path) -> io::Result<()> {
        DirBuilder::new().mode(0o700).create(path)?;
        self.give(path)
    }

    /// Makes an empty file that belongs to the user, inside a directory that does not, unless it is there.
    pub(crate) fn make_file(&self, path: &Path) -> io::Result<()> {
        let file = open_regular_for(Opening::Append { mode: 0o600 }, path, LinkPolicy::Refuse)?;
        fchown(file, Some(self.uid), Some(self.gid))
    }

    /// Hands something over that was made inside a directory that does not belong to the user.
    pub(crate) fn give(&self, path: &Path) -> io::Result<()> {
        lchown(path, Some(self.uid), Some(self.gid))
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, OpenOptions};
    use std::os::unix::fs::OpenOptionsExt;

    use super::*;

    #[test]
    fn users_that_are_not_there_and_root_are_refused_with_reasons() {
        let why = Identity::find("no-such-user-here", true).unwrap_err();
        assert_eq!(why, "user `no-such-user-here` does not exist on this node");
        assert_eq!(Identity::find("root", true), Ok(None));
        assert!(Identity::find("root", false).unwrap_err().contains("refused"));
        let nobody = Identity::find("nobody", false).unwrap().unwrap();
        assert!(nobody.uid != 0 && nobody.groups.contains(&nobody.gid), "{nobody:?}");
    }

    #[test]
    fn a_thread_that_assumes_an_identity_reads_what_the_user_may_and_others_are_unchanged() {
        if !geteuid().is_root() {
            println!("SKIPPED: only root can become another user");
            return;
        }
        let path = std::env::temp_dir().join(format!("bedplate-identity-{}", std::process::id()));
        OpenOptions::new().create(true).append(true).mode(0o600).open(&path).unwrap();
        let nobody = Identity::find("nobody", false).unwrap().unwrap();
        let read = path.clone();
        let outcome = std::thread::spawn(move || {
            nobody.assume_for_files().unwrap();
            fs::read(read).map_err(|error| error.kind())
        });
        assert_eq!(outcome.join().unwrap(), Err(io::ErrorKind::PermissionDenied));
        assert!(fs::read(&path).is_ok());
        fs::remove_file(path).unwrap();
    }
}
