//! `bedplate error [CODE]`

use bedplate_diag::{Class, Diagnostic, Page, nearest};
use bedplate_terminal::present::Facts;
use bedplate_terminal::{CliError, Console};
use serde_json::{Value, json};

use crate::pages;

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  bedplate error                          all codes
  bedplate error catalog/unknown-name     one of them, explained")]
pub(crate) struct Arguments {
    /// The code in brackets after `error`
    code: Option<String>,
}

#[derive(Debug, thiserror::Error)]
#[error("no error has the code `{code}`")]
struct UnknownCode {
    code: String,
}

pub(crate) const PAGES: &[&Page] = &[&UNKNOWN_CODE];

static UNKNOWN_CODE: Page = Page {
    code: "error/unknown-code",
    class: Class::User,
    meaning: "You asked about an error code that does not exist.",
    remedy: "list all codes with `bedplate error`",
};

impl Diagnostic for UnknownCode {
    fn page(&self) -> &'static Page {
        &UNKNOWN_CODE
    }

    fn help(&self) -> Option<String> {
        let codes = pages::all().into_iter().map(|page| page.code);
        nearest(&self.code, codes).map(|code| format!("did you mean `{code}`?"))
    }
}

pub(crate) fn run(arguments: &Arguments, console: &mut Console) -> Result<(), CliError> {
    match &arguments.code {
        None => list(console),
        Some(code) => explain(code, console),
    }
}

fn list(console: &mut Console) -> Result<(), CliError> {
    if console.is_json() {
        return console.json(&Value::Array(pages::all().into_iter().map(page_json).collect()));
    }
    let mut facts = Facts::default();
    for page in pages::all() {
        facts.add(page.code, page.remedy);
    }
    console.text(&facts.render(console.width()))
}

fn explain(code: &str, console: &mut Console) -> Result<(), CliError> {
    let Some(page) = pages::all().into_iter().find(|page| page.code == code) else {
        return Err(UnknownCode { code: code.to_owned() }.into());
    };
    if console.is_json() {
        return console.json(&page_json(page));
    }
    let mut facts = Facts::default();
    facts
        .add("meaning", page.meaning)
        .add("remedy", page.remedy)
        .add("class", format!("{} (exit code {})", page.class.name(), page.class.exit_code()));
    console.text(&format!("{}\n{}", page.code, facts.render(console.width())))
}

fn page_json(page: &Page) -> Value {
    json!({
        "code": page.code,
        "class": page.class.name(),
        "exit_code": page.class.exit_code(),
        "meaning": page.meaning,
        "remedy": page.remedy,
    })
}
