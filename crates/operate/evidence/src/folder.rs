//! Files and folders as a user names them.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use bedplate_diagnose::{Case, NamedLog};
use bedplate_logs::Recognizer;

use crate::EvidenceError;
use crate::file::{self, Found};

/// Files of a folder that are read; more are left out and told.
const MOST_FILES: usize = 100_000;
const DEEPEST: usize = 12;
/// What is left out is listed up to here.
const MOST_LISTED: usize = 20;

/// A case, and what was not used for it.
#[derive(Debug, Default)]
pub struct Gathered {
    pub case: Case,
    pub bytes: u64,
    pub files: usize,
    /// Files with the reason why they were left out.
    pub left_out: Vec<String>,
    pub left_out_in_all: usize,
}

/// Reads logs and records: files, folders with all that is in them, or standard input as `-`. Says each name to `progress`.
pub fn gather(
    inputs: &[PathBuf],
    recognizer: &Recognizer,
    progress: &mut dyn FnMut(&str),
) -> Result<Gathered, EvidenceError> {
    let mut gathered = Gathered::default();
    for input in inputs {
        if input.as_os_str() == "-" {
            let log = file::log(io::stdin().lock(), "standard input", 1970, recognizer);
            let failed = |source| EvidenceError::Read { path: input.clone(), source };
            gathered.take("standard input".to_owned(), Found::Log(log.map_err(failed)?));
            continue;
        }
        let about =
            fs::metadata(input).map_err(|source| EvidenceError::Read { path: input.clone(), source })?;
        if about.is_dir() {
            gathered.folder(input, recognizer, progress)?;
        } else {
            let name = input.display().to_string();
            progress(&name);
            let found = file::read(file::open(input)?, &name, recognizer);
            gathered.take(name, found.map_err(|source| EvidenceError::Read { path: input.clone(), source })?);
        }
    }
    Ok(gathered)
}

impl Gathered {
    fn folder(
        &mut self,
        folder: &Path,
        recognizer: &Recognizer,
        progress: &mut dyn FnMut(&str),
    ) -> Result<(), EvidenceError> {
        let mut files = Vec::new();
        let failed = |source| EvidenceError::Read { path: folder.to_owned(), source };
        self.list(folder, 0, &mut files).map_err(failed)?;
        files.sort();
        for path in files {
            let name = path.strip_prefix(folder).unwrap_or(&path).display().to_string();
            progress(&name);
            match file::open(&path).map(|file| file::read(file, &name, recognizer)) {
                Ok(Ok(found)) => self.take(name, found),
                Ok(Err(error)) => self.leave_out(format!("{name}: {error}")),
                Err(error) => self.leave_out(error.to_string()),
            }
        }
        Ok(())
    }

    /// Regular files below a folder; links are left out.
    fn list(&mut self, folder: &Path, depth: usize, files: &mut Vec<PathBuf>) -> io::Result<()> {
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let (path, kind) = (entry.path(), entry.file_type()?);
            match () {
                () if kind.is_dir() && depth < DEEPEST => {
                    if let Err(error) = self.list(&path, depth + 1, files) {
                        self.leave_out(format!("{}: {error}", path.display()));
                    }
                }
                () if kind.is_file() && files.len() < MOST_FILES => files.push(path),
                () if kind.is_file() => {
                    self.leave_out(format!("{}: there are more than {MOST_FILES} files", path.display()))
                }
                () => self.leave_out(format!("{}: it is no regular file", path.display())),
            }
        }
        Ok(())
    }

    fn take(&mut self, name: String, found: Found) {
        self.files += 1;
        match found {
            Found::Log(log) => {
                self.bytes += log.bytes;
                self.case.logs.push(NamedLog { name, log });
            }
            Found::Record(record) => self.case.records.push(record),
            Found::Ras(ras) => self.case.records.extend(ras.records()),
            Found::Stack(stack) => self.case.stacks.push(stack),
            Found::LeftOut(why) => self.leave_out(format!("{name}: {why}")),
        }
    }

    fn leave_out(&mut self, what: String) {
        self.left_out_in_all += 1;
        if self.left_out.len() < MOST_LISTED {
            self.left_out.push(what);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_folder_as_people_bring_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let line = b"[rank3]: RuntimeError: CUDA error: uncorrectable ECC error encountered\n";
        fs::write(path("rank_3.log"), line).unwrap();
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packed.write_all(line).unwrap();
        fs::write(path("rank_4.log.gz"), packed.finish().unwrap()).unwrap();
        fs::write(path("rank_5.log.zst"), zstd::encode_all(&line[..], 1).unwrap()).unwrap();
        fs::write(path("core.xz"), b"\xfd7zXZ\0rest").unwrap();
        fs::write(path("nccl_trace_rank_7"), b"\x80\x02cos\nsystem\n.").unwrap();
        fs::write(path("empty.log"), b"").unwrap();
        fs::write(
            path("flight-1.json"),
            br#"{"rank":1,"world":2,"epoch":0,"at_us":5,"fault":null,"calls":[]}"#,
        )
        .unwrap();
        nix::unistd::mkfifo(&path("pipe"), nix::sys::stat::Mode::S_IRUSR).unwrap();
        symlink("/etc/passwd", path("link")).unwrap();
        let gathered = gather(&[folder.path().to_owned()], &Recognizer::built_in(), &mut |_| {}).unwrap();
        let signs = gathered.case.logs.iter().filter(|log| !log.log.signs.is_empty()).count();
        assert_eq!(
            (signs, gathered.case.records.len(), gathered.left_out_in_all),
            (3, 1, 4),
            "{:?}",
            gathered.left_out
        );
        assert_eq!(gathered.case.records[0].rank, 1);
        assert!(matches!(
            gather(&[path("pipe")], &Recognizer::built_in(), &mut |_| {}),
            Err(EvidenceError::NotAFile { .. })
        ));
    }

    #[test]
    fn a_packed_log_that_was_cut_is_read_to_where_it_is_whole() {
        let folder = tempfile::tempdir().unwrap();
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        for step in 0..20_000 {
            writeln!(packed, "iter {step}: loss 3.1, time 410.{}ms, mfu 37%", step * 7919 % 100).unwrap();
        }
        let packed = packed.finish().unwrap();
        let path = folder.path().join("log.gz");
        fs::write(&path, &packed[..packed.len() / 2]).unwrap();
        let gathered = gather(&[path], &Recognizer::built_in(), &mut |_| {}).unwrap();
        assert!(gathered.case.logs[0].log.steps.len() > 1000);
    }
}
