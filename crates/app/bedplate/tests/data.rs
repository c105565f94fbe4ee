//! Golden runs of `bedplate data`, in a temporary folder.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

use std::fs;
use std::path::PathBuf;

use bedplate_testkit::Transcript;
use expect_test::expect_file;

struct Desk(PathBuf);

impl Desk {
    /// A folder with texts, pages and conversations.
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("bedplate-{name}-{}", std::process::id()));
        fs::create_dir_all(path.join("texts")).unwrap();
        fs::write(path.join("texts/a.txt"), "the garden and the gate and the garden wall\n".repeat(20))
            .unwrap();
        let page = |number: u32| format!("{{\"id\": {number}, \"text\": \"page {number} of the garden\"}}\n");
        fs::write(path.join("pages.jsonl"), (0..40).map(page).collect::<String>()).unwrap();
        let turns = |number: u32| {
            format!(
                "{{\"messages\": [{{\"role\": \"user\", \"content\": \"{number} + 1?\"}}, {{\"role\": \"assistant\", \"content\": \"{}\"}}]}}\n",
                number + 1
            )
        };
        fs::write(path.join("chats.jsonl"), (0..9).map(turns).collect::<String>()).unwrap();
        Self(path)
    }

    fn run(&self, command: &str) -> String {
        let run = Transcript::of(env!("CARGO_BIN_EXE_bedplate"), &self.0).run(command);
        let is_timed = |line: &&str| !line.trim_start().starts_with("speed ");
        run.lines().filter(is_timed).map(|line| format!("{line}\n")).collect()
    }

    fn run_all(&self, commands: &[&str]) -> String {
        commands.iter().map(|command| self.run(command)).collect::<Vec<_>>().join("\n")
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn from_text_to_samples() {
    let desk = Desk::new("data-runs");
    let runs = desk.run_all(&[
        "data --help",
        "data tokenize --help",
        "data generate --documents 60 --validation 5 --vocabulary 400 --seed 3 --out corpus",
        "data show corpus",
        "data show corpus --sample 3 --sequence 120 --verify",
        "data generate --kind arithmetic --documents 2 --print",
        "data generate --chat --documents 9 --validation 0 --tokenizer corpus/tokenizer.json --out questions",
        "data show questions --sample 2 --sequence 256",
        "data generate --chat --kind arithmetic --documents 1 --print",
        "data train-tokenizer texts --vocabulary 300 --out tokenizer.json",
        "data tokenize pages.jsonl --tokenizer tokenizer.json --held-out 0.2 --out pages --threads 1",
        "data tokenize chats.jsonl --chat --tokenizer tokenizer.json --out chats --threads 2",
        "data show chats --sample 0 --sequence 64",
        "--json data show chats --sample 0 --sequence 30",
        "data show chats --sample 0 --sequence 8",
    ]);
    expect_file!["golden/data_runs.txt"].assert_eq(&runs);
}

#[test]
fn what_cannot_be_done_is_explained() {
    let desk = Desk::new("data-errors");
    desk.run("data train-tokenizer texts --vocabulary 300 --out tokenizer.json");
    desk.run("data tokenize pages.jsonl --tokenizer tokenizer.json --out pages");
    let shard = desk.0.join("pages/00000.tokens");
    let mut bytes = fs::read(&shard).unwrap();
    bytes[100] ^= 1;
    fs::write(&shard, bytes).unwrap();
    fs::write(desk.0.join("wrong.jsonl"), "{\"text\": \"x\"}\n{\"text\": 7}\n").unwrap();
    fs::write(desk.0.join("pages.csv"), "a,b\n").unwrap();
    let runs = desk.run_all(&[
        "data show pages --verify",
        "data show missing",
        "data generate --documents 5 --out pages",
        "data generate --documents 5 --vocabulary 100 --out other",
        "data generate --kind poems --documents 5 --out other",
        "data tokenize pages.jsonl --tokenizer pages.jsonl --out other",
        "data tokenize wrong.jsonl --tokenizer tokenizer.json --out other",
        "data tokenize pages.jsonl --field body --tokenizer tokenizer.json --out other",
        "data tokenize pages.jsonl --chat --tokenizer tokenizer.json --out other",
        "data tokenize pages.csv --tokenizer tokenizer.json --out other",
        "data tokenize pages.jsonl --begin '<x>' --tokenizer tokenizer.json --out other",
        "data tokenize missing.jsonl --tokenizer tokenizer.json --out other",
    ]);
    expect_file!["golden/data_errors.txt"].assert_eq(&runs);
}

/// The commands of the guide work, one after the other.
#[test]
fn the_commands_of_the_guide_run() {
    let desk = Desk::new("data-guide");
    let text = fs::read_to_string(bedplate_testkit::root().join("docs/data.md")).unwrap();
    let commands: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("$ bedplate ")).collect();
    assert!(commands.len() >= 5);
    for command in commands {
        let run = desk.run(command);
        assert!(run.contains("\nexit 0\n"), "{run}");
    }
}
