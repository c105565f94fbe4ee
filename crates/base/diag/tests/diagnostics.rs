//! How diagnostics look to a person and to a program.

use bedplate_diag::*;
use expect_test::{Expect, expect};
use proptest::prelude::*;

#[derive(Debug, thiserror::Error)]
#[error("memory of accelerator `{name}` is not a size")]
struct BadFigure {
    name: String,
    place: Option<Place>,
    #[source]
    cause: Option<std::num::ParseFloatError>,
}

static BAD_FIGURE: Page = Page {
    code: "catalog/bad-figure",
    class: Class::User,
    meaning: "A figure could not be read.",
    remedy: "write a number and a unit",
};

impl Diagnostic for BadFigure {
    fn page(&self) -> &'static Page {
        &BAD_FIGURE
    }
    fn place(&self) -> Option<&Place> {
        self.place.as_ref()
    }
}

fn check(error: &BadFigure, expected: &Expect) {
    expected.assert_eq(&format!("{}{:#}", render_text(error), render_json(error)));
}

#[test]
fn a_person_sees_place_cause_and_help_and_a_program_the_same_fields() {
    let source = Source::new("overlay.toml", "[[accelerator]]\nname = \"own\"\nmemory = \"lots\"\n");
    let place = Some(source.place(source.text.find("\"lots").unwrap()));
    let cause = "lots".parse::<f64>().err();
    check(
        &BadFigure { name: "own".into(), place, cause },
        &expect![[r#"
            error[catalog/bad-figure]: memory of accelerator `own` is not a size
              in   overlay.toml:3:10: memory = "lots"
              why  invalid float literal
            help:  write a number and a unit
            {
              "error": {
                "code": "catalog/bad-figure",
                "class": "user",
                "message": "memory of accelerator `own` is not a size",
                "place": {
                  "file": "overlay.toml",
                  "line": 3,
                  "column": 10,
                  "text": "memory = \"lots\""
                },
                "causes": [
                  "invalid float literal"
                ],
                "help": "write a number and a unit"
              }
            }"#]],
    );
}

#[test]
fn a_very_long_line_is_quoted_around_the_fault() {
    let text = format!("{}HERE{}", "a".repeat(5000), "b".repeat(5000));
    let place = Source::new("f", &text).place(5000);
    assert_eq!(place.column, Some(5001));
    assert!(place.text.contains("HERE") && place.text.chars().count() < 130, "{}", place.text);
}

#[test]
fn misspelt_names_find_their_neighbours_and_garbage_finds_none() {
    let names = ["p5.48xlarge", "p5e.48xlarge", "p6-b200.48xlarge", "trn2.48xlarge"];
    let near = |wanted| nearest(wanted, names);
    assert_eq!(near("p5.48xlrge"), Some("p5.48xlarge"));
    assert_eq!(near("P5E.48XLARGE"), Some("p5e.48xlarge"));
    assert_eq!(near("trn2"), Some("trn2.48xlarge"));
    assert_eq!(near("a quantum computer"), None);
    assert_eq!(near(&"x".repeat(100_000)), None);
}

#[test]
fn exit_codes_follow_the_class() {
    let codes = [Class::User, Class::Usage, Class::Transient, Class::Bug].map(Class::exit_code);
    assert_eq!(codes, [1, 2, 3, 70]);
}

proptest! {
    #[test]
    fn every_offset_of_every_text_has_a_place(text in "(\\PC|\n){0,60}", offset in 0usize..200) {
        let place = Source::new("f", &text).place(offset);
        let lines = text.split('\n').count();
        prop_assert!((1..=lines).contains(&place.line.unwrap()));
    }
}
