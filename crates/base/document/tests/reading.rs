//! Documents that are wrong say where and how; documents that are right hand out their values.

use bedplate_diag::{Source, render_text};
use bedplate_document::{DocumentError, Table};
use bedplate_units::{Bandwidth, Bytes};
use expect_test::{Expect, expect};
use proptest::prelude::*;

#[derive(Debug, Clone, Copy)]
enum Vendor {
    Nvidia,
    Aws,
}

/// Reads a small format with one key of every kind and renders the result.
fn read(text: &str) -> Result<String, DocumentError> {
    let document = Table::parse(Source::new("own.toml", text))?;
    let mut lines = Vec::new();
    for gpu in document.tables("gpu")? {
        let name: String = gpu.required("name")?;
        let gpu = gpu.titled(format!("gpu `{name}`"));
        let memory: Bytes = gpu.required("memory")?;
        let count: u32 = gpu.or("count", 1)?;
        let ports: Vec<Bandwidth> = gpu.or("ports", Vec::new())?;
        let vendor = gpu.choice("vendor", &[("nvidia", Vendor::Nvidia), ("aws", Vendor::Aws)])?;
        gpu.finish()?;
        lines.push(format!("{name} {memory} x{count} {ports:?} {vendor:?}"));
    }
    document.finish()?;
    Ok(lines.join("\n"))
}

fn check(text: &str, expected: Expect) {
    expected.assert_eq(&read(text).unwrap_or_else(|error| render_text(&error)));
}

#[test]
fn a_right_document_hands_out_typed_values() {
    check(
        "[[gpu]]\nname = 'own'\nmemory = '80 GB'\ncount = 8\nports = ['400 Gbps']\nvendor = 'aws'\n",
        expect!["own 80 GB x8 [Bandwidth(50 GB/s)] Aws"],
    );
}

#[test]
fn wrong_documents_name_line_and_remedy() {
    check(
        "[[gpu]]\nname = \n",
        expect![[r#"
        error[document/syntax]: this is not valid TOML: string values must be quoted, expected literal string
          in   own.toml:2:8: name =
        help:  check quotes, brackets and `key = value` around the place shown
    "#]],
    );
    check(
        "[[gpu]]\nname = 'own'\n",
        expect![[r#"
        error[document/missing-key]: gpu `own` lacks the key `memory`
          in   own.toml:1:1: [[gpu]]
        help:  add `memory = …`, a size such as "80 GB"
    "#]],
    );
    check(
        "[[gpu]]\nname = 'own'\nmemory = 80\n",
        expect![[r#"
            error[document/wrong-type]: `memory` of gpu `own` is a number, not a size such as "80 GB"
              in   own.toml:3:10: memory = 80
            help:  write the value as the type named
        "#]],
    );
    check(
        "[[gpu]]\nname = 'own'\nmemory = '80'\n",
        expect![[r#"
        error[document/bad-value]: `memory` of gpu `own` cannot be used: `80` has no unit; a size reads like `80 GB`
          in   own.toml:3:10: memory = '80'
        help:  change the value as the message says
    "#]],
    );
    check(
        "[[gpu]]\nname = 'own'\nmemory = '80 GB'\nvendor = 'nvidea'\n",
        expect![[r#"
        error[document/bad-value]: `vendor` of gpu `own` cannot be used: `nvidea` is unknown; did you mean `nvidia`?
          in   own.toml:4:10: vendor = 'nvidea'
        help:  change the value as the message says
    "#]],
    );
    check(
        "[[gpu]]\nname = 'own'\nmemory = '80 GB'\nvendor = 'aws'\ncounts = 3\n",
        expect![[r#"
            error[document/unknown-key]: gpu `own` has the unknown key `counts`
              in   own.toml:5:1: counts = 3
            help:  did you mean `count`?
        "#]],
    );
    check(
        "[[gpu]]\nname = 'own'\nmemory = '80 GB'\ncount = 99999999999\n",
        expect![[r#"
        error[document/bad-value]: `count` of gpu `own` cannot be used: 99999999999 is larger than 4294967295
          in   own.toml:4:9: count = 99999999999
        help:  change the value as the message says
    "#]],
    );
    check(
        "gpu = 3\n",
        expect![[r#"
            error[document/wrong-type]: `gpu` of the file is a number, not a list of tables
              in   own.toml:1:7: gpu = 3
            help:  write the value as the type named
        "#]],
    );
}

#[test]
fn an_overlay_wins_key_by_key_and_keeps_its_place() {
    let base = Table::parse(Source::new("base.toml", "a = 1\nb = 2\n")).unwrap();
    let over = Table::parse(Source::new("over.toml", "\n\nb = 'x'\n")).unwrap();
    let both = base.overlay(over);
    assert_eq!(both.required::<u32>("a").unwrap(), 1);
    let error = both.required::<u32>("b").unwrap_err();
    assert!(render_text(&error).contains("over.toml:3:5"), "{}", render_text(&error));
}

#[test]
fn deep_nesting_is_refused_and_not_followed_to_the_end_of_the_stack() {
    let deep = format!("gpu = {}{}", "[".repeat(100_000), "]".repeat(100_000));
    assert!(matches!(read(&deep), Err(DocumentError::Syntax { .. })));
}

proptest! {
    #[test]
    fn no_text_makes_the_reader_panic(text in "([\\[\\]={}'\"a-z0-9.,# \n]|\\PC){0,80}") {
        let _ = read(&text);
    }
}
