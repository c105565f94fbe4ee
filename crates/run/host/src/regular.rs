//! Files that strangers may have made: opened without waiting, and read only up to a bound.
//!
//! In place of a model's configuration there may be a FIFO without a writer, a device that never ends, or a file of terabytes. Only a
//! regular file is opened, and its size is known to be bearable before the first byte is read. In folders of ours that others may write to, neither a
//! link nor a mount is followed, so that a file system which does not answer is not even asked.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use bedplate_units::Bytes;
use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, open, openat2};
use nix::sys::stat::Mode;

/// Whether a path may lead elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkPolicy {
    /// The file lies in a folder of ours that others may write to: there a link, or a mount, in the place of the file or of its folder is an attempt to
    /// make us read or change something else, or wait.
    Refuse,
    /// Whoever is served named the path.
    Follow,
}

/// What a file is opened for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opening {
    Read,
    Write,
    /// To its end; made, with this mode, where it is missing.
    Append {
        mode: u32,
    },
}

/// Opens a regular file to read. Anything else is refused at once.
pub fn open_regular(path: &Path) -> io::Result<File> {
    open_regular_for(Opening::Read, path, LinkPolicy::Follow)
}

/// The same for other purposes and places.
pub fn open_regular_for(opening: Opening, path: &Path, links: LinkPolicy) -> io::Result<File> {
    let file = match links {
        LinkPolicy::Refuse => open_beneath(opening, path)?,
        LinkPolicy::Follow => {
            // Opening a device may already do something.
            match fs::metadata(path) {
                Ok(metadata) => expect_regular(&metadata)?,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
            open_without_waiting(opening, path, OFlag::empty())?
        }
    };
    expect_regular(&file.metadata()?)?;
    Ok(file)
}

fn open_without_waiting(opening: Opening, path: &Path, more: OFlag) -> io::Result<File> {
    let mut options = OpenOptions::new();
    match opening {
        Opening::Read => options.read(true),
        Opening::Write => options.write(true),
        Opening::Append { mode } => options.append(true).create(true).mode(mode),
    };
    options.custom_flags((OFlag::O_NONBLOCK | OFlag::O_NOCTTY | more).bits()).open(path)
}

/// Opens a file whose folder lies in one that is ours alone: from there on nothing leads elsewhere.
fn open_beneath(opening: Opening, path: &Path) -> io::Result<File> {
    let folder = path.parent().and_then(|folder| Some((folder.parent()?, folder.file_name()?)));
    let (Some((ours, folder)), Some(name)) = (folder, path.file_name()) else {
        return open_without_waiting(opening, path, OFlag::O_NOFOLLOW);
    };
    let ours = if ours.as_os_str().is_empty() { Path::new(".") } else { ours };
    let ours = open(ours, OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty())?;
    let (flags, mode) = match opening {
        Opening::Read => (OFlag::O_RDONLY, 0),
        Opening::Write => (OFlag::O_WRONLY, 0),
        Opening::Append { mode } => (OFlag::O_WRONLY | OFlag::O_APPEND | OFlag::O_CREAT, mode),
    };
    let how = OpenHow::new()
        .flags(flags | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC)
        .mode(Mode::from_bits_truncate(mode))
        .resolve(ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_NO_XDEV);
    match openat2(&ours, &Path::new(folder).join(name), how) {
        Ok(file) => Ok(file.into()),
        Err(Errno::EXDEV) => Err(io::Error::new(io::ErrorKind::CrossesDevices, "something is mounted there")),
        // Before Linux 5.6, or where a container forbids it: links at least are refused.
        Err(Errno::ENOSYS | Errno::EPERM) => open_without_waiting(opening, path, OFlag::O_NOFOLLOW),
        Err(error) => Err(error.into()),
    }
}

fn expect_regular(metadata: &fs::Metadata) -> io::Result<()> {
    match metadata.is_file() {
        true => Ok(()),
        false if metadata.is_dir() => Err(io::ErrorKind::IsADirectory.into()),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file")),
    }
}

/// The whole of a regular file that has at most `most_bytes`.
pub fn read_regular(path: &Path, most_bytes: u64) -> io::Result<Vec<u8>> {
    read_whole(open_regular(path)?, most_bytes)
}

/// The whole of a file that has at most `most_bytes`.
pub fn read_whole(file: File, most_bytes: u64) -> io::Result<Vec<u8>> {
    let too_large = || {
        let most = Bytes::new(most_bytes as f64);
        io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!("it is larger than {most}, the most that is read"),
        )
    };
    if file.metadata()?.len() > most_bytes {
        return Err(too_large());
    }
    // It may grow while it is read, and the files of a kernel have no size.
    let mut bytes = Vec::new();
    file.take(most_bytes + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 <= most_bytes { Ok(bytes) } else { Err(too_large()) }
}

/// The same of a text in UTF-8.
pub fn read_regular_text(path: &Path, most_bytes: u64) -> io::Result<String> {
    let bytes = read_regular(path, most_bytes)?;
    String::from_utf8(bytes).map_err(|error| {
        let place = error.utf8_error().valid_up_to();
        io::Error::new(io::ErrorKind::InvalidData, format!("byte {place} is not UTF-8 text"))
    })
}

/// The beginning of a regular file, at most `most_bytes` of it: for files of a kernel, and what else may be cut.
pub fn read_beginning(path: &Path, most_bytes: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open_regular(path)?.take(most_bytes).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use bedplate_testkit::{Hanging, HangingMount};
    use nix::unistd::mkfifo;

    use super::*;

    #[test]
    fn what_is_no_regular_file_of_bearable_size_is_refused_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let [fifo, real, link, sparse] =
            ["fifo", "real", "link", "sparse"].map(|name| folder.path().join(name));
        mkfifo(&fifo, Mode::S_IRWXU).unwrap();
        fs::write(&real, "text").unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        File::create(&sparse).unwrap().set_len(1 << 40).unwrap();
        for path in [&fifo, folder.path(), Path::new("/dev/zero"), &folder.path().join("missing")] {
            assert!(read_regular(path, 1 << 20).is_err(), "{}", path.display());
        }
        let too_large = read_regular(&sparse, 1 << 20).unwrap_err();
        assert_eq!(too_large.kind(), io::ErrorKind::FileTooLarge);
        assert!(too_large.to_string().contains("larger than 1"), "{too_large}");
        assert_eq!(read_regular_text(&link, 4).unwrap(), "text");
        assert!(read_regular_text(&link, 3).is_err());
        assert!(!read_regular(Path::new("/proc/version"), 1 << 20).unwrap().is_empty());
        fs::write(&real, b"a\xff").unwrap();
        assert!(read_regular_text(&real, 4).unwrap_err().to_string().contains("byte 1"));
    }
    #[test]
    fn in_a_folder_of_ours_neither_links_nor_mounts_lead_elsewhere() {
        let ours = tempfile::tempdir().unwrap();
        let [run, link] = ["run", "link"].map(|name| ours.path().join(name));
        fs::create_dir(&run).unwrap();
        std::os::unix::fs::symlink(&run, &link).unwrap();
        fs::write(run.join("real"), "text").unwrap();
        mkfifo(&run.join("fifo"), Mode::S_IRWXU).unwrap();
        std::os::unix::fs::symlink(run.join("real"), run.join("link")).unwrap();
        let open = |opening, path: &Path| open_regular_for(opening, path, LinkPolicy::Refuse);
        for opening in [Opening::Read, Opening::Write, Opening::Append { mode: 0o600 }] {
            assert!(open(opening, &run.join("real")).is_ok());
            for path in [run.join("fifo"), run.join("link"), link.join("real"), run.join("no/such")] {
                assert!(open(opening, &path).is_err(), "{opening:?} {}", path.display());
            }
        }
        assert!(open(Opening::Read, &run.join("missing")).is_err());
        assert!(open(Opening::Append { mode: 0o600 }, &run.join("missing")).is_ok());
        let Some(_mount) = HangingMount::at(&run, "s3fs", Hanging::Everything) else { return };
        for opening in [Opening::Read, Opening::Write, Opening::Append { mode: 0o600 }] {
            let error = open(opening, &run.join("real")).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::CrossesDevices);
        }
    }
}
