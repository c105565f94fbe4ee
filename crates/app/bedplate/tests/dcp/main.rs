//! What `checkpoint convert` writes is read by PyTorch's distributed checkpoints, and what these write is read back.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

/// PyTorch takes long to start on a machine with other work.
const PATIENCE: Duration = Duration::from_secs(600);
const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/dcp/hugging_face.py");

/// A folder that goes away.
struct Place(PathBuf);

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl Place {
    fn bedplate(&self, line: &str) {
        let done = self.outcome(line);
        assert!(done.status.success(), "{line}: {}", String::from_utf8_lossy(&done.stderr));
    }

    fn outcome(&self, line: &str) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_bedplate"));
        command.args(line.split(' ')).current_dir(&self.0);
        for name in ["RANK", "WORLD_SIZE", "BEDPLATE_REPORT"] {
            command.env_remove(name);
        }
        command.output().unwrap()
    }

    fn tensors(&self, folder: &str) -> BTreeMap<String, Vec<f32>> {
        let mut found = BTreeMap::new();
        for entry in fs::read_dir(self.0.join(folder)).unwrap().flatten() {
            if entry.path().extension().is_some_and(|end| end == "safetensors") {
                found.extend(tensors(&fs::read(entry.path()).unwrap()));
            }
        }
        found
    }
}

/// The tensors of a file of safetensors in f32.
fn tensors(bytes: &[u8]) -> Vec<(String, Vec<f32>)> {
    let (length, rest) = bytes.split_first_chunk::<8>().unwrap();
    let (header, data) = rest.split_at(u64::from_le_bytes(*length) as usize);
    let header: Value = serde_json::from_slice(header).unwrap();
    let of = |(name, tensor): (&String, &Value)| {
        assert_eq!(tensor["dtype"], "F32", "{name}");
        let offset = |index: usize| tensor["data_offsets"][index].as_u64().unwrap() as usize;
        let numbers = data[offset(0)..offset(1)].as_chunks::<4>().0.iter();
        (name.clone(), numbers.map(|number| f32::from_le_bytes(*number)).collect())
    };
    header.as_object().unwrap().iter().filter(|(name, _)| *name != "__metadata__").map(of).collect()
}

/// Runs the script for a bounded time; gives what it printed, or why it failed.
fn script(python: &Path, arguments: &[&str], place: &Path) -> Result<String, String> {
    let mut command = Command::new(python);
    command.arg(SCRIPT).args(arguments).current_dir(place).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| error.to_string())?;
    let (mut out, mut err) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let listen = move |pipe: &mut dyn Read| {
        let mut text = String::new();
        let _ = pipe.read_to_string(&mut text);
        text
    };
    let said = thread::spawn(move || listen(&mut err));
    let printed = thread::spawn(move || listen(&mut out));
    let began = Instant::now();
    let status = loop {
        match child.try_wait().unwrap() {
            Some(status) => break status,
            None if began.elapsed() > PATIENCE => {
                child.kill().unwrap();
                child.wait().unwrap();
                return Err("it does not end".to_owned());
            }
            None => thread::sleep(Duration::from_millis(50)),
        }
    };
    let (printed, said) = (printed.join().unwrap(), said.join().unwrap());
    if status.success() { Ok(printed) } else { Err(said) }
}

/// A Python with PyTorch and safetensors: the one that is named, that of `bench comm`, or the system's.
fn python(place: &Path) -> Option<PathBuf> {
    let named = std::env::var_os("BEDPLATE_TORCH_PYTHON").map(PathBuf::from);
    let cached = std::env::home_dir().map(|home| home.join(".cache/bedplate/peers/torch/bin/python"));
    let all = named.into_iter().chain(cached).chain(["python3".into()]);
    all.into_iter().find(|python| script(python, &["check"], place).is_ok())
}

#[test]
fn distributed_checkpoints_of_pytorch_meet_ours_in_a_hugging_face_folder() {
    let path = std::env::temp_dir().join(format!("bedplate-dcp-{}", std::process::id()));
    fs::create_dir_all(&path).unwrap();
    let place = Place(path);
    let Some(python) = python(&place.0) else {
        return println!("SKIPPED: PyTorch's distributed checkpoints: no Python with torch and safetensors");
    };
    let model = r#"{"model_type": "llama", "hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2,
        "num_hidden_layers": 2, "vocab_size": 400, "max_position_embeddings": 64, "tie_word_embeddings": false}"#;
    fs::write(place.0.join("config.json"), model).unwrap();
    let text = "[model]\nconfig = \"config.json\"\n[data]\ncorpora = [\"corpus\"]\nsequence = 32\n\
                [training]\nsteps = 3\nbatch = 2\nmicro_batch = 2\n[evaluation]\nevery = 0\n";
    fs::write(place.0.join("train.toml"), text).unwrap();
    place.bedplate("data generate --documents 60 --vocabulary 400 --out corpus");
    place.bedplate("train train.toml --quiet");
    place.bedplate("checkpoint convert run weights --shard 20kB");
    let ours = place.tensors("weights");
    assert!(fs::read_dir(place.0.join("weights")).unwrap().count() > 3, "several files");

    let said = script(&python, &["read", "weights"], &place.0).unwrap();
    assert_eq!(said.trim(), format!("read {} tensors", ours.len()));
    let said = script(&python, &["write", "weights", "theirs"], &place.0).unwrap();
    assert_eq!(said.trim(), format!("wrote {} tensors", ours.len()));

    fs::copy(place.0.join("config.json"), place.0.join("theirs/config.json")).unwrap();
    // Each file there has some rows of every tensor.
    fs::copy(place.0.join("config.json"), place.0.join("theirs/sharded/config.json")).unwrap();
    assert!(!place.outcome("checkpoint convert theirs/sharded other").status.success());
    place.bedplate("checkpoint convert theirs first");
    place.bedplate("checkpoint verify first");
    place.bedplate("checkpoint convert first back");
    let back = place.tensors("back");
    assert_eq!(back.keys().collect::<Vec<_>>(), ours.keys().collect::<Vec<_>>());
    for (name, numbers) in &ours {
        let twice: Vec<f32> = numbers.iter().map(|number| 2.0 * number).collect();
        assert_eq!(back[name], twice, "{name}");
    }
}
