//! Metrics of ranks, right, wrong and hostile.

use std::io::Write;
use std::process::{Command, Stdio};

use expect_test::expect;
use proptest::prelude::*;

use super::*;

fn written(families: &Families) -> String {
    let mut out = Exposition::default();
    families.write(&mut out);
    out.into_string()
}

fn passed_on(text: &str) -> String {
    written(&Families::read(text, "rank=\"0\",Hostname=\"n1\""))
}

#[test]
fn metrics_of_ranks_are_labelled_and_grouped() {
    let text = "# HELP vllm:num_requests_running Running.\n# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{model_name=\"a}b\"} 3.0\n# TYPE ttft histogram\nttft_bucket{le=\"0.1\"} 1\nttft_bucket{le=\"+Inf\"} 2\nttft_sum 0.5\nttft_count 2 1700000000\nup 1\n";
    let mut families = Families::read(text, "hpc_job=\"7\",rank=\"0\"");
    families.merge(Families::read(text, "hpc_job=\"7\",rank=\"1\""));
    expect![[r#"
        # HELP ttft 
        # TYPE ttft histogram
        ttft_bucket{le="0.1",hpc_job="7",rank="0"} 1
        ttft_bucket{le="+Inf",hpc_job="7",rank="0"} 2
        ttft_sum{hpc_job="7",rank="0"} 0.5
        ttft_count{hpc_job="7",rank="0"} 2
        ttft_bucket{le="0.1",hpc_job="7",rank="1"} 1
        ttft_bucket{le="+Inf",hpc_job="7",rank="1"} 2
        ttft_sum{hpc_job="7",rank="1"} 0.5
        ttft_count{hpc_job="7",rank="1"} 2
        # HELP up 
        # TYPE up untyped
        up{hpc_job="7",rank="0"} 1
        up{hpc_job="7",rank="1"} 1
        # HELP vllm:num_requests_running Running.
        # TYPE vllm:num_requests_running gauge
        vllm:num_requests_running{model_name="a}b",hpc_job="7",rank="0"} 3.0
        vllm:num_requests_running{model_name="a}b",hpc_job="7",rank="1"} 3.0
    "#]]
    .assert_eq(&written(&families));
}

#[test]
fn lines_that_would_break_the_text_are_left_out() {
    for line in [
        "x{a=\"b\" 1",
        "x{a=b} 1",
        "x one",
        "9x 1",
        "x{a=\"1\"b=\"2\"} 1",
        "x{}",
        "<html>",
        "x",
        // Prometheus refuses the whole scrape for each of these.
        "x{a=\"1\",a=\"2\"} 1",
        "x{a:b=\"1\"} 1",
        "x{__name__=\"y\"} 1",
        "x{a=\"\\x\"} 1",
        "x 1e999",
        "x +nan",
        "x infinity",
        "x{a=\"\0\"} 1",
    ] {
        assert!(Families::read(line, "").is_empty(), "{line}");
    }
    assert!(!Families::read("x{a=\"1\",} NaN", "").is_empty());
}

#[test]
fn a_label_that_is_also_ours_steps_aside() {
    expect![[r#"
        # HELP x 
        # TYPE x untyped
        x{exported_rank="7",a="b",rank="0",Hostname="n1"} 1
        x{exported_exported_rank="7",exported_rank="8",rank="0",Hostname="n1"} 2
    "#]]
    .assert_eq(&passed_on("x{rank=\"7\",a=\"b\"} 1\nx{rank=\"7\",exported_rank=\"8\"} 2\n"));
}

#[test]
fn a_rank_cannot_speak_for_the_node() {
    let told = passed_on(
        "# TYPE bedplate_finding counter\nbedplate_finding{rule=\"gpu/lost\",action=\"replace\"} 1\n\
         # TYPE DCGM_FI_DEV_GPU_TEMP counter\nDCGM_FI_DEV_GPU_TEMP{gpu=\"0\"} 99\nbedplate_train_loss 2\n",
    );
    assert_eq!(
        told,
        "# HELP bedplate_train_loss \n# TYPE bedplate_train_loss untyped\nbedplate_train_loss{rank=\"0\",Hostname=\"n1\"} 2\n"
    );
}

#[test]
fn a_name_that_ranks_use_differently_is_that_of_the_first() {
    let mut families = Families::read("# TYPE x gauge\nx 1\n", "rank=\"0\"");
    families.merge(Families::read(
        "# TYPE x histogram\nx_bucket{le=\"+Inf\"} 1\nx_sum 1\nx_count 1\n",
        "rank=\"1\"",
    ));
    families.merge(Families::read("# TYPE x gauge\nx 2\n", "rank=\"0\""));
    assert_eq!(written(&families), "# HELP x \n# TYPE x gauge\nx{rank=\"0\"} 1\n");
}

#[test]
fn series_that_do_not_fit_their_kind_are_left_out() {
    let told = passed_on(
        "# TYPE h histogram\nh 1\nh_bucket 2\nh_bucket{le=\"wide\"} 3\nh_bucket{le=\"1\"} 4\nh_bucket{le=\"1\"} 5\n\
         # TYPE g gauge\ng 1\ng_count 2\n# TYPE g_count gauge\ng_count{a=\"b\"} 3\n# HELP g a \\b\n",
    );
    expect![[r#"
        # HELP g a \\b
        # TYPE g gauge
        g{rank="0",Hostname="n1"} 1
        # HELP g_count 
        # TYPE g_count gauge
        g_count{rank="0",Hostname="n1"} 2
        g_count{a="b",rank="0",Hostname="n1"} 3
        # HELP h 
        # TYPE h histogram
        h_bucket{le="1",rank="0",Hostname="n1"} 4
    "#]]
    .assert_eq(&told);
}

/// Pieces of which lines are made that are nearly right.
fn piece() -> impl Strategy<Value = String> {
    const PIECES: &[&str] = &[
        "# TYPE a histogram\n",
        "# TYPE a counter\n",
        "# TYPE a_count gauge\n",
        "# HELP a \\b \\n\n",
        "# TYPE b summary\n",
        "a",
        "a_bucket",
        "a_sum",
        "a_count",
        "b",
        "up",
        "node_load1",
        "{",
        "}",
        "le=\"1\"",
        "le=\"x\"",
        "rank=\"1\"",
        "quantile=\"0.5\"",
        "a:b=\"1\"",
        "c=\"\\\\\"",
        "c=\"\\q\"",
        ",",
        " ",
        " 1",
        " NaN",
        " +Inf",
        " 1e999",
        " -0x1",
        "\n",
        "\t",
        "\u{fffd}",
        "\0",
        "\r",
        "# EOF\n",
        " 1 1700000000",
        " 1 # {a=\"b\"} 2",
    ];
    prop::sample::select(PIECES).prop_map(str::to_owned)
}

fn promtool(text: &str) -> Option<(bool, String)> {
    let mut command = Command::new("promtool");
    command.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().ok()?;
    child.stdin.take()?.write_all(text.as_bytes()).ok()?;
    let output = child.wait_with_output().ok()?;
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    // It also has opinions on names, which are the ranks' own.
    Some((output.status.code() != Some(1), told))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    /// Whatever ranks say, the real promtool reads what is passed on.
    #[test]
    fn promtool_reads_whatever_is_passed_on(texts in prop::collection::vec(prop::collection::vec(piece(), 0..120), 1..4)) {
        let mut families = Families::default();
        for (rank, text) in texts.iter().enumerate() {
            families.merge(Families::read(&text.concat(), &format!("rank=\"{rank}\",Hostname=\"n1\"")));
        }
        let text = written(&families);
        match promtool(&text) {
            Some((is_read, told)) => prop_assert!(is_read, "{told}\nof\n{text}"),
            None => println!("SKIPPED: promtool is not installed"),
        }
    }

    #[test]
    fn arbitrary_bytes_never_harm(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
        let text = String::from_utf8_lossy(&bytes);
        let once = written(&Families::read(&text, ""));
        prop_assert_eq!(written(&Families::read(&once, "")), once);
    }
}
