//! A program's run as a user sees it: command line, both outputs, exit code.

use std::process::{Command, Stdio};

use std::io::Write;

/// Runs a program and renders its run as text for comparison with a stored one.
pub struct Transcript {
    program: String,
    folder: std::path::PathBuf,
    columns: Option<usize>,
    input: Option<Vec<u8>>,
}

impl Transcript {
    /// `program` is the path of the binary; it runs in `folder`, so that paths in output are short.
    pub fn of(program: &str, folder: impl Into<std::path::PathBuf>) -> Self {
        Self { program: program.to_owned(), folder: folder.into(), columns: Some(80), input: None }
    }

    /// Output as when piped: lines of any length.
    pub fn piped(mut self) -> Self {
        self.columns = None;
        self
    }

    pub fn with_input(mut self, input: impl Into<Vec<u8>>) -> Self {
        self.input = Some(input.into());
        self
    }

    /// Runs with arguments as typed in a shell, where only single quotes are special.
    pub fn run(&self, arguments: &str) -> String {
        let mut command = Command::new(&self.program);
        command.args(split(arguments)).current_dir(&self.folder).env_remove("BEDPLATE_CATALOG");
        // Not the contexts of the user who runs the tests.
        command.env("BEDPLATE_CONTEXTS", "contexts.toml").env_remove("BEDPLATE_TOKEN");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        match self.columns {
            Some(columns) => command.env("COLUMNS", columns.to_string()),
            None => command.env_remove("COLUMNS"),
        };
        let mut child = command.spawn().expect("the program was built before its tests");
        let mut stdin = child.stdin.take().expect("standard input is piped");
        // A program may close its input without reading it.
        let _ = stdin.write_all(self.input.as_deref().unwrap_or_default());
        drop(stdin);
        let output = child.wait_with_output().expect("the program was started");
        let code = output.status.code().map_or("killed".to_owned(), |code| code.to_string());
        let mut text = format!("$ bedplate {arguments}\nexit {code}\n");
        for (title, bytes) in [("stdout", &output.stdout), ("stderr", &output.stderr)] {
            if !bytes.is_empty() {
                text += &format!("--- {title}\n{}", String::from_utf8_lossy(bytes));
            }
        }
        text
    }
}

fn split(arguments: &str) -> Vec<String> {
    let mut words = Vec::new();
    for (index, part) in arguments.split('\'').enumerate() {
        if index % 2 == 1 {
            words.push(part.to_owned());
        } else {
            words.extend(part.split_whitespace().map(str::to_owned));
        }
    }
    words
}

/// A test per file of `golden/`: the commands run in 80 columns, one after the other. The caller has `fn terminal() -> Transcript`.
#[macro_export]
macro_rules! golden {
    ($($name:ident: [$($command:literal),+ $(,)?])+) => {$(
        #[test]
        fn $name() {
            let runs: Vec<String> = [$($command),+].iter().map(|command| terminal().run(command)).collect();
            expect_test::expect_file![concat!("golden/", stringify!($name), ".txt")].assert_eq(&runs.join("\n"));
        }
    )+};
}
