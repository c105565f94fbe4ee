//! `bedplate checkpoint` over the checkpoints of a small run.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

use std::fs;
use std::path::PathBuf;

use bedplate_testkit::Transcript;

struct Desk(PathBuf);

impl Desk {
    /// A folder with a run of four steps.
    fn new() -> Self {
        let path = std::env::temp_dir().join(format!("bedplate-checkpoints-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        let model = r#"{"model_type": "llama", "hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2,
            "num_hidden_layers": 1, "vocab_size": 400, "max_position_embeddings": 64, "tie_word_embeddings": false}"#;
        fs::write(path.join("config.json"), model).unwrap();
        let desk = Self(path);
        desk.run("data generate --documents 60 --validation 5 --vocabulary 400 --seed 3 --out corpus");
        let keys = "training.steps=4 training.batch=2 training.micro_batch=2 data.sequence=32 checkpoint.every=2 evaluation.every=0";
        let set: String = keys.split(' ').map(|key| format!(" --set {key}")).collect();
        fs::write(
            desk.0.join("train.toml"),
            "[model]\nconfig = \"config.json\"\n[data]\ncorpora = [\"corpus\"]\n",
        )
        .unwrap();
        let said = desk.run(&format!("train train.toml{set}"));
        assert!(said.contains("\nexit 0\n"), "{said}");
        desk
    }

    fn run(&self, command: &str) -> String {
        Transcript::of(env!("CARGO_BIN_EXE_bedplate"), &self.0).piped().run(command)
    }

    /// Runs a command and looks for texts in what it printed.
    fn expect(&self, command: &str, code: u8, texts: &[&str]) {
        let said = self.run(command);
        assert!(said.contains(&format!("\nexit {code}\n")), "{said}");
        for text in texts {
            assert!(said.contains(text), "{text} is not in:\n{said}");
        }
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn checkpoints_are_shown_verified_and_converted() {
    let desk = Desk::new();
    let step = "run/checkpoints/step-00000004";
    desk.expect("checkpoint show run", 0, &["STEP", "dp1", "run/checkpoints/step-00000002", step]);
    desk.expect(
        &format!("checkpoint show {step} --tensors"),
        0,
        &["step        4", "samples     8", "written by  dp1", "second/model.norm.weight", "llama"],
    );
    desk.expect(&format!("--json checkpoint show {step}"), 0, &["\"step\": 4", "\"weights/lm_head.weight\""]);
    desk.expect(
        "checkpoint verify run",
        0,
        &["good  run/checkpoints/step-00000002", "good  run/checkpoints/step-00000004"],
    );

    desk.expect("checkpoint convert run weights --shard 20kB", 0, &["weights is a Hugging Face folder"]);
    assert!(desk.0.join("weights/model.safetensors.index.json").exists());
    desk.expect("checkpoint convert run weights", 1, &["error[checkpoint/unwritable]"]);
    desk.expect("checkpoint convert weights first", 0, &["first is a checkpoint of step 0"]);
    desk.expect("checkpoint verify first", 0, &["good  first"]);
    desk.expect("train train.toml --set training.steps=1 --set training.batch=2 --set training.micro_batch=2 --set data.sequence=32 --set output.folder=again --set evaluation.every=0 --accept-changes --resume first", 0, &[]);

    let data = desk.0.join(step).join("part-00000.data");
    let mut bytes = fs::read(&data).unwrap();
    bytes[100] ^= 1;
    fs::write(&data, bytes).unwrap();
    desk.expect(
        "checkpoint verify run",
        1,
        &["BAD   the checkpoint run/checkpoints/step-00000004 is not good: part-00000.data is damaged"],
    );
    desk.expect(&format!("checkpoint verify {step}"), 1, &["error[checkpoint/damaged]"]);
    fs::remove_file(desk.0.join(step).join("manifest.json")).unwrap();
    desk.expect(
        "checkpoint show run",
        0,
        &["note: the checkpoint run/checkpoints/step-00000004 is not good: manifest.json is missing"],
    );
    desk.expect("checkpoint show nowhere", 1, &["error[checkpoint/nothing-there]"]);
    desk.expect("checkpoint show s3://", 1, &["error[checkpoint/bad-address]"]);
}
