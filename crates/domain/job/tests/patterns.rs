//! File names are made from patterns, and what is put into them never leaves the folder.

use bedplate_diag::render_text;
use bedplate_job::{ArrayMember, FileNames};
use expect_test::expect;
use proptest::prelude::*;

fn names() -> FileNames<'static> {
    FileNames {
        job: 4711,
        array: Some(ArrayMember { array: 4700, index: 11 }),
        name: "pretrain",
        user: "ada",
        host: "n017",
        node: 3,
        task: 26,
        step: "0",
    }
}

#[test]
fn every_letter_stands_for_its_value() {
    for (pattern, path) in [
        ("slurm-%j.out", "slurm-4711.out"),
        ("%A_%a.log", "4700_11.log"),
        ("/fsx/%u/%x/%N-%n-%t.err", "/fsx/ada/pretrain/n017-3-26.err"),
        ("rank%4t.%3n", "rank0026.003"),
        ("%10j|%1j", "0000004711|4711"),
        ("%s %J 100%%", "0 4711.0 100%"),
        ("plain", "plain"),
        ("", ""),
    ] {
        assert_eq!(names().expand(pattern).unwrap(), path, "{pattern}");
    }
    assert_eq!(FileNames { array: None, ..names() }.expand("%A_%a").unwrap(), "4711_4294967294");
}

#[test]
fn a_pattern_that_stands_for_nothing_says_what_there_is() {
    let error = names().expand("logs/%q.out").unwrap_err();
    expect![[r#"
        error[job/bad-pattern]: the file name pattern `logs/%q.out` cannot be used: `%q` stands for nothing; the letters are %j job, %A array, %a index, %x name, %u user, %N host, %n node, %t task, %s step, %J job.step, %% per cent
        help:  use the letters listed in docs/job.md, and `%%` for a per cent sign
    "#]]
    .assert_eq(&render_text(&error));
    assert!(names().expand("50%").unwrap_err().to_string().contains("nothing follows its last `%`"));
    assert!(names().expand("%99t").unwrap_err().to_string().contains("at most 10 digits"));
    let long = "x".repeat(5000);
    assert!(names().expand(&long).unwrap_err().to_string().contains("4096"));
    assert!(FileNames { name: &long, ..names() }.expand("%x").is_err());
}

#[test]
fn a_job_called_like_a_path_stays_in_its_folder() {
    for (name, path) in [
        ("../../etc/passwd", "logs/___.._etc_passwd.out"),
        ("..", "logs/__.out"),
        (".hidden", "logs/_hidden.out"),
        ("a/b\0c\nd", "logs/a_b_c_d.out"),
        ("", "logs/_.out"),
        ("v1.2", "logs/v1.2.out"),
    ] {
        assert_eq!(FileNames { name, ..names() }.expand("logs/%x.out").unwrap(), path);
    }
    let odd = FileNames { user: "../root", host: "/", step: "../0", ..names() };
    assert_eq!(odd.expand("%u/%N/%s").unwrap(), "___root/_/___0");
}

proptest! {
    #[test]
    fn whatever_is_substituted_the_folders_are_those_of_the_pattern(
        name in "\\PC{0,20}|[./]{0,8}", user in "[./a]{0,6}", pattern in "[a/%xuNjt4.]{0,16}"
    ) {
        let names = FileNames { name: &name, user: &user, host: &name, ..names() };
        if let Ok(path) = names.expand(&pattern) {
            prop_assert_eq!(path.matches('/').count(), pattern.matches('/').count());
            for (made, written) in path.split('/').zip(pattern.split('/')) {
                prop_assert!(made != ".." || written == "..", "{} from {}", path, pattern);
            }
        }
    }

    #[test]
    fn no_pattern_makes_it_panic(pattern in "(%[0-9]{0,12}|\\PC){0,12}") {
        let _ = names().expand(&pattern);
    }
}
