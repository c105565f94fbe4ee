//! What the serving side reads from a table, and how it scores and adjusts.

use bedplate_calibrate::CalibrateError;
use bedplate_calibrate::serving::{
    HeldOut, Measure, PeerLatency, ServingCase, ServingCases, ServingErrors, beside, fit_site,
    held_out_errors, held_out_report, serving_report,
};
use bedplate_catalog::Catalog;
use bedplate_perf::serving::ServingConstants;

const HEADER: &str = "id,source,model,gpus,tp,ep,dp,precision,engine,isl,osl,concurrency_or_rate,ttft_ms,itl_ms,\
    notes,accelerator,load_kind,pools,duplicate_of\n";

fn read(rows: &str) -> Result<ServingCases, CalibrateError> {
    ServingCases::read(&format!("{HEADER}{rows}"), &Catalog::builtin())
}

fn reason(row: &str) -> String {
    let good = "ok,mine,Llama-3.1-8B,1,1,,,,vllm 0.18,1024,128,8,40,8,,H100,closed_loop,aggregated,\n";
    let cases = read(&format!("{good}{row}\n")).expect("one good row is there");
    cases.skipped.first().map_or_else(|| "used".to_owned(), |skipped| skipped.reason.to_string())
}

#[test]
fn rows_that_cannot_be_predicted_say_why() {
    let of = |model: &str, layout: &str, rest: &str| {
        reason(&format!("x,mine,{model},{layout},fp8,{rest},H200,closed_loop,aggregated,"))
    };
    let vllm = "vllm 0.18,1024,128,8,40,8,";
    for (found, expected) in [
        (of("Llama-3.1-70B", "1,1,,", vllm), "used"),
        (of("Nobody-7B", "1,1,,", vllm), "the model `Nobody-7B` is not known"),
        (of("DeepSeek-V3", "1,1,,", vllm), "the weights exceed the memory of a GPU by"),
        (of("DeepSeek-V3", "36,36,,", vllm), "36 tensor ranks: the total of several pools"),
        (of("DeepSeek-V3", "8,8,3,", vllm), "the layout is invalid"),
        (
            of("Llama-3.1-70B", "1,1,,", "llama.cpp,1024,128,8,40,8,"),
            "the engine `llama.cpp` is not modelled",
        ),
        (
            of("Llama-3.1-70B", "1,1,,", "vllm,1024,128,many,40,8,"),
            "the column `concurrency_or_rate` is blank",
        ),
        (of("Llama-3.1-70B", "1,1,,", "vllm,1024,128,8,,,"), "no measured latency or throughput"),
    ] {
        assert!(found.starts_with(expected), "{found}, not {expected}");
    }
}

#[test]
fn a_product_of_degrees_is_repaired() {
    let row = |gpus: u32, tp: u32, ep: u32, dp: u32| {
        format!(
            "x{gpus}-{tp},InferenceX,DeepSeek-V3,{gpus},{tp},{ep},{dp},fp8,trtllm,1024,1024,64,900,30,,B200,closed_loop,aggregated,\n"
        )
    };
    let cases = read(&[row(64, 64, 8, 1), row(64, 1, 8, 64), row(8, 8, 8, 1)].concat()).unwrap();
    let layouts: Vec<_> = cases.used.iter().map(|case| case.deployment.parallel).collect();
    assert_eq!(layouts[0], layouts[2]);
    assert_eq!((layouts[1].attention_data, layouts[1].gpus()), (8, 8));
    assert_eq!(cases.used.iter().map(|case| case.is_repaired).collect::<Vec<_>>(), [true, true, false]);
}

#[test]
fn rounded_repeats_are_skipped() {
    let row = |id: &str, ttft: &str, itl: &str| {
        format!("{id},mine,Llama-3.1-8B,1,1,,,,vllm,1024,128,8,{ttft},{itl},,H100,closed_loop,aggregated,\n")
    };
    let cases =
        read(&[row("exact", "148.606", "10.4312"), row("short", "148.61", "10.43")].concat()).unwrap();
    assert_eq!(cases.used.len(), 1);
    assert_eq!(cases.skipped[0].reason.to_string(), "repeats exact, rounded");
}

#[test]
fn one_measured_row_adjusts_its_deployment() {
    let row = |users: u32, ttft: f64, itl: f64| {
        format!(
            "r{users},mine,Llama-3.1-8B,1,1,,,,vllm,1024,512,{users},{ttft},{itl},,H100,closed_loop,aggregated,\n"
        )
    };
    let text = [row(8, 90.0, 14.0), row(32, 150.0, 22.0)].concat();
    let cases = read(&text).unwrap();
    let constants = ServingConstants::builtin();
    let site = fit_site(&cases, &constants);
    assert_eq!(site.len(), 1);
    let adjusted = cases.used[0].adjusted(site.find_key(&cases.used[0].site_key()).unwrap());
    let (before, after) = (cases.used[0].log_errors(&constants), adjusted.log_errors(&constants));
    assert!(after.inter_token.abs() < before.inter_token.abs());
}

/// The accuracy that the book promises, on the project's own rows.
#[test]
fn errors_on_measured_rows_stay_within_what_is_promised() {
    let (cases, constants) = (measured(), ServingConstants::builtin());
    let report = serving_report(&cases, |_| &constants);
    assert!(report.total.inter_token.rows >= 1640);
    for (score, median, p90) in [
        (report.total.inter_token, 0.10, 0.30),
        (report.total.throughput, 0.10, 0.30),
        (report.total.first_token, 0.22, 0.60),
    ] {
        assert!(score.median_abs_error <= median && score.p90_abs_error <= p90, "{score:?}");
    }
}

/// 80 % intervals hold four in five rows of sources that neither the constants nor the intervals have seen.
#[test]
fn intervals_hold_four_in_five_rows_held_out() {
    let cases = measured();
    let rows = held_out_errors(&cases, &HeldOut::builtin(), &ServingConstants::builtin());
    let errors = ServingErrors::builtin();
    let again = ServingErrors::from_held_out(&rows);
    for (case, _) in &rows {
        let high = |errors: &ServingErrors| {
            let spread = errors.spread(case.likeness()?)?;
            Some(spread.interval(Measure::InterToken).high)
        };
        let (made, kept) = (high(&again).expect("it has errors"), high(&errors).expect("it has errors"));
        assert!((made / kept - 1.0).abs() < 1e-3, "intervals.toml is not of these rows: {made}, {kept}");
    }
    let report = held_out_report(&rows, &errors);
    let all = report.coverage["all"]["all rows"];
    for held in [all.first_token, all.inter_token, all.throughput] {
        assert!((0.75..=0.85).contains(&held), "{all:?}");
    }
    let score = report.total;
    assert!(score.inter_token.median_abs_error <= 0.12, "{score:?}");
    assert!(score.throughput.median_abs_error <= 0.12, "{score:?}");
    assert!(score.first_token.median_abs_error <= 0.26, "{score:?}");
}

fn measured() -> ServingCases {
    ServingCases::builtin(&Catalog::builtin()).expect("its rows are sound")
}

/// A peer that answers what was measured has no error, and rows that it cannot answer are scored for nobody.
#[test]
fn a_peer_is_scored_on_the_rows_that_both_predict() {
    let row = |id: &str, users: u32| {
        format!("{id},mine,Llama-3.1-8B,1,1,,,,vllm,1024,512,{users},90,14,,H100,closed_loop,aggregated,\n")
    };
    let cases = read(&[row("a", 8), row("b", 16), row("c", 32)].concat()).unwrap();
    let right = |case: &ServingCase| PeerLatency {
        first_token: case.measured.first_token,
        inter_token: case.measured.inter_token,
    };
    let slow =
        |case: &ServingCase| PeerLatency { inter_token: 2.0 * case.measured.inter_token, ..right(case) };
    let answers = [Some(right(&cases.used[0])), Some(slow(&cases.used[1])), None];
    let (constants, held_out) = (ServingConstants::builtin(), HeldOut::builtin());
    let report = beside(&cases.used, &answers, &constants, &held_out);
    assert_eq!((report.asked, report.answered), (3, 2));
    let dense = report.by["kind"]["dense, vllm"];
    assert_eq!((dense.rows, dense.peer.inter_token.rows, dense.held_out.inter_token.rows), (3, 2, 2));
    assert!((dense.peer.inter_token.median_abs_error - 0.5).abs() < 1e-9, "{dense:?}");
    assert!(dense.peer.first_token.p90_abs_error < 1e-9, "{dense:?}");
    assert_eq!(report.by["gpu"]["H100"], dense);
}
