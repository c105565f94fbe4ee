//! Generated pages of the book, kept current by tests.

use std::fs;

/// Compares a file of `docs/` with what it should be, or writes it when `UPDATE_EXPECT` is set.
pub fn check(path: &str, expected: &str) {
    let file = crate::root().join("docs").join(path);
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        let folder = file.parent().expect("it is below docs");
        fs::create_dir_all(folder)
            .and_then(|()| fs::write(&file, expected))
            .expect("the book can be written");
    }
    let found = fs::read_to_string(&file).unwrap_or_default();
    assert!(found == expected, "docs/{path} is not current; run `UPDATE_EXPECT=1 ./test`");
}

/// Adds the help of a command and of all below it that are shown and have help of their own.
pub fn add_help(command: &mut clap::Command, name: &str, text: &mut String) {
    let help = command.render_long_help().to_string();
    let help: Vec<&str> = help.lines().map(str::trim_end).collect();
    *text += &format!("\n## {name}\n\n```\n{}\n```\n", help.join("\n").trim_end());
    for below in command
        .get_subcommands_mut()
        .filter(|below| !below.is_hide_set() && !below.is_disable_help_flag_set())
    {
        let below_name = format!("{name} {}", below.get_name());
        add_help(below, &below_name, text);
    }
}
