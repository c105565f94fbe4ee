//! Rules over hours of readings, in milliseconds of test.

use bedplate_finding::Action;
use expect_test::{Expect, expect};

use super::*;
use crate::{Profile, ReadingPlace, XidSource};

fn health(profile: Profile) -> Health {
    Health::new("n1", Rules::built_in(profile))
}

fn read(health: &mut Health, metric: &str, place: ReadingPlace<'_>, value: f64, now_s: u64) {
    health.take([Reading { metric, place, value }].into_iter(), now_s * 1000);
}

fn xid(health: &mut Health, gpu: u32, xid: u32, text: &str, now_s: u64) {
    let process = text.strip_prefix("pid=").and_then(|pid| pid.parse().ok());
    let seen = XidSeen { gpu: Some(gpu), xid, process, text, source: XidSource::KernelLog };
    health.saw_xid(seen, now_s * 1000);
}

fn check(health: &Health, expected: Expect) {
    let shown = |open: &OpenFinding| {
        let Finding { rule, severity, subject, action, .. } = &open.finding;
        let evidence: Vec<&str> =
            open.finding.evidence.iter().map(|evidence| evidence.reading.as_str()).collect();
        format!("{severity} {rule} {subject} -> {action} x{} [{}]\n", open.times, evidence.join("; "))
    };
    expected.assert_eq(&health.findings().iter().map(shown).collect::<String>());
}

#[test]
fn a_lost_gpu_takes_its_node_out_and_its_return_settles_it() {
    let mut health = health(Profile::Nvidia);
    read(&mut health, "bedplate_gpu_lost", ReadingPlace::Gpu(3), 1.0, 10);
    read(&mut health, "bedplate_gpu_lost", ReadingPlace::Gpu(3), 1.0, 11);
    check(
        &health,
        expect![[r#"
        critical gpu/lost GPU 3 of node n1 -> reboot x1 [1]
    "#]],
    );
    read(&mut health, "bedplate_gpu_lost", ReadingPlace::Gpu(3), 0.0, 12);
    check(&health, expect![""]);
}

#[test]
fn double_bit_errors_of_before_are_no_news_and_new_ones_are() {
    let mut health = health(Profile::Nvidia);
    let metric = "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL";
    read(&mut health, metric, ReadingPlace::Gpu(0), 7.0, 0);
    check(&health, expect![""]);
    read(&mut health, metric, ReadingPlace::Gpu(0), 8.0, 1);
    check(
        &health,
        expect![[r#"
        critical gpu/ecc-double-bit GPU 0 of node n1 -> reset-device x1 [+1 within 10 min]
    "#]],
    );
    read(&mut health, metric, ReadingPlace::Gpu(0), 8.0, 700);
    check(&health, expect![""]);
}

#[test]
fn single_bit_errors_matter_only_when_they_accelerate() {
    let metric = "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL";
    let (mut steady, mut accelerating) = (health(Profile::Nvidia), health(Profile::Nvidia));
    let mut fired_at = None;
    for minute in 0..=600_u64 {
        read(&mut steady, metric, ReadingPlace::Gpu(0), minute as f64, minute * 60);
        let faster = if minute > 420 { (minute - 420) as f64 } else { 0.0 };
        read(&mut accelerating, metric, ReadingPlace::Gpu(0), faster, minute * 60);
        if fired_at.is_none() && !accelerating.findings().is_empty() {
            fired_at = Some(minute);
        }
    }
    check(&steady, expect![""]);
    assert_eq!(fired_at, Some(430));
}

#[test]
fn a_hot_minute_is_needed_and_a_cool_reading_ends_it() {
    let mut health = health(Profile::Nvidia);
    let metric = "DCGM_FI_DEV_GPU_TEMP";
    for (at, value, open) in [(0, 95.0, 0), (30, 95.0, 0), (31, 80.0, 0), (40, 95.0, 0), (99, 95.0, 0)] {
        read(&mut health, metric, ReadingPlace::Gpu(1), value, at);
        assert_eq!(health.findings().len(), open, "at {at} s");
    }
    read(&mut health, metric, ReadingPlace::Gpu(1), 95.0, 101);
    check(
        &health,
        expect![[r#"
        warning gpu/hot GPU 1 of node n1 -> alert x1 [95]
    "#]],
    );
}

#[test]
fn counters_that_read_zero_on_a_busy_gpu_are_a_fault_of_telemetry() {
    let mut health = health(Profile::Nvidia);
    for second in 0..200 {
        let reading = |metric, value| Reading { metric, place: ReadingPlace::Gpu(0), value };
        let readings =
            [reading("DCGM_FI_DEV_GPU_UTIL", 100.0), reading("DCGM_FI_PROF_GR_ENGINE_ACTIVE", 0.0)];
        health.take(readings.into_iter(), second * 1000);
    }
    check(
        &health,
        expect![[r#"
        warning gpu/telemetry GPU 0 of node n1 -> alert x1 [0]
    "#]],
    );
    let mut idle = self::health(Profile::Nvidia);
    for second in 0..200 {
        let reading = |metric| Reading { metric, place: ReadingPlace::Gpu(0), value: 0.0 };
        let readings = [reading("DCGM_FI_DEV_GPU_UTIL"), reading("DCGM_FI_PROF_GR_ENGINE_ACTIVE")];
        idle.take(readings.into_iter(), second * 1000);
    }
    check(&idle, expect![""]);
}

#[test]
fn a_narrow_link_is_one_that_could_be_wider() {
    let mut health = health(Profile::Nvidia);
    for second in 0..70 {
        let reading = |metric, value| Reading { metric, place: ReadingPlace::Gpu(2), value };
        let width = reading("DCGM_FI_DEV_PCIE_LINK_WIDTH", 8.0);
        let most = reading("DCGM_FI_DEV_PCIE_MAX_LINK_WIDTH", 16.0);
        health.take([width, most].into_iter(), second * 1000);
    }
    check(
        &health,
        expect![[r#"
        warning gpu/pcie-width GPU 2 of node n1 -> alert x1 [8]
    "#]],
    );
    assert_eq!(
        health.findings()[0].finding.evidence[0].expected.as_deref(),
        Some("16, as DCGM_FI_DEV_PCIE_MAX_LINK_WIDTH")
    );
}

#[test]
fn one_xid_that_both_sources_report_is_one() {
    let mut health = health(Profile::Nvidia);
    xid(&mut health, 0, 79, "GPU has fallen off the bus.", 5);
    let seen = XidSeen { gpu: Some(0), xid: 79, process: None, text: "", source: XidSource::Driver };
    health.saw_xid(seen, 5_100);
    check(
        &health,
        expect![[r#"
        critical gpu/xid-79 GPU 0 of node n1 -> reboot x1 [GPU has fallen off the bus.]
    "#]],
    );
    assert_eq!(health.xid_counts().collect::<Vec<_>>(), [(Some(0), 79, 1)]);
    health.saw_xid(seen, 9_000);
    assert_eq!(health.xid_counts().collect::<Vec<_>>(), [(Some(0), 79, 2)]);
}

#[test]
fn profiles_decide_about_a_remapped_row() {
    let action = |profile| {
        let mut health = health(profile);
        xid(&mut health, 0, 63, "Row Remapper", 1);
        health.findings()[0].finding.action
    };
    let expected = [Action::Watch, Action::Replace, Action::Replace];
    assert_eq!(Profile::ALL.map(action), expected);
}

#[test]
fn a_consequence_is_recorded_with_its_cause() {
    let mut health = health(Profile::Nvidia);
    xid(&mut health, 0, 48, "DBE", 1);
    xid(&mut health, 0, 45, "Ch 1", 2);
    let follower = &health.findings()[0].finding;
    assert_eq!((follower.rule.as_str(), follower.action), ("gpu/xid-45", Action::Record));
    assert!(follower.summary.ends_with(", after XID 48"), "{}", follower.summary);
}

#[test]
fn a_second_process_that_fails_alike_accuses_the_gpu_and_two_gpus_accuse_the_application() {
    let mut health = health(Profile::Nvidia);
    xid(&mut health, 0, 31, "pid=100", 0);
    xid(&mut health, 0, 31, "pid=100", 200);
    assert!(health.findings().iter().all(|open| open.finding.rule == "gpu/xid-31"));
    xid(&mut health, 0, 31, "pid=200", 3600);
    check(
        &health,
        expect![[r#"
        warning gpu/xid-31 GPU 0 of node n1 -> restart-job x3 [pid=200]
        critical gpu/xid-repeated-by-processes GPU 0 of node n1 -> drain x1 [2 times, codes 31]
    "#]],
    );
    let mut both = self::health(Profile::Nvidia);
    for (gpu, second) in [(0, 0), (1, 1), (0, 3600), (1, 3601)] {
        xid(&mut both, gpu, 31, &format!("pid={second}"), second);
    }
    assert!(both.findings().iter().all(|open| open.finding.rule == "gpu/xid-31"));
}

#[test]
fn a_remap_with_an_error_is_worse_than_a_remap() {
    let mut health = health(Profile::Nvidia);
    xid(&mut health, 0, 48, "DBE", 0);
    xid(&mut health, 0, 63, "Row Remapper", 3);
    let rules: Vec<String> = health.findings().iter().map(|open| open.finding.rule.clone()).collect();
    assert_eq!(rules, ["gpu/xid-48", "gpu/xid-63", "gpu/xid-remap-with-error"]);
}

#[test]
fn five_fatal_xids_within_a_day_end_resets() {
    let mut health = health(Profile::Nvidia);
    for hour in 0..5 {
        xid(&mut health, 0, 119, "GSP RPC timeout", hour * 3600);
    }
    let strongest = health.findings().iter().map(|open| open.finding.action).max();
    assert_eq!(strongest, Some(Action::Replace));
}

#[test]
fn the_text_of_a_message_decides_where_the_code_does_not() {
    let action = |code, text: &str| {
        let mut health = health(Profile::Nvidia);
        xid(&mut health, 0, code, text, 1);
        health.findings()[0].finding.action
    };
    let changed = |to: &str| format!("GPU recovery action changed from 0x0 (None) to {to}");
    assert_eq!(action(154, &changed("0x1 (GPU Reset Required)")), Action::ResetDevice);
    assert_eq!(action(154, &changed("0x2 (Node Reboot Required)")), Action::Reboot);
    assert_eq!(action(154, &changed("0x4 (Drain and Reset)")), Action::Drain);
    assert_eq!(action(154, &changed("0x0 (None)")), Action::Record);
    assert_eq!(action(149, "NETIR_LINK_DOWN Nonfatal XC0 i0 Link 05"), Action::Watch);
    assert_eq!(action(149, "NETIR_LINK_DOWN Fatal XC0 i0 Link 05"), Action::Drain);
    assert_eq!(action(99_999, "news"), Action::Alert);
}

#[test]
fn what_an_operator_acknowledged_stays_silent_until_it_was_gone() {
    let mut health = health(Profile::Nvidia);
    xid(&mut health, 0, 79, "gone", 1);
    read(&mut health, "DCGM_FI_DEV_ROW_REMAP_FAILURE", ReadingPlace::Gpu(1), 1.0, 1);
    assert_eq!(health.findings().len(), 2);
    health.acknowledge(1_000);
    read(&mut health, "DCGM_FI_DEV_ROW_REMAP_FAILURE", ReadingPlace::Gpu(1), 1.0, 2);
    check(&health, expect![""]);
    read(&mut health, "DCGM_FI_DEV_ROW_REMAP_FAILURE", ReadingPlace::Gpu(1), 0.0, 3);
    read(&mut health, "DCGM_FI_DEV_ROW_REMAP_FAILURE", ReadingPlace::Gpu(1), 1.0, 4);
    xid(&mut health, 0, 79, "again", 5);
    assert_eq!(health.findings().len(), 2);
}

#[test]
fn lines_of_the_kernel_log_are_matched_by_their_words() {
    let mut health = health(Profile::Nvidia);
    for second in 0..3 {
        health.saw_line("blk_update_request: I/O error, dev nvme1n1, sector 2048", second * 1000);
    }
    health.saw_line("LustreError: 11-0: fs-OST0001 was evicted by server", 9_000);
    let rules: Vec<String> = health.findings().iter().map(|open| open.finding.rule.clone()).collect();
    assert_eq!(rules, ["storage/disk-errors", "storage/lustre-evicted"]);
    health.tick(90_000_000);
    check(&health, expect![""]);
}

#[test]
fn a_reading_that_stops_says_nothing_any_more() {
    let mut health = health(Profile::Nvidia);
    read(&mut health, "bedplate_mount_stalled_seconds", ReadingPlace::Mount("/fsx"), 31.0, 0);
    assert_eq!(health.findings().len(), 1);
    health.tick(61_001);
    check(&health, expect![""]);
}

#[test]
fn a_value_that_was_not_read_in_between_has_not_lasted() {
    let mut health = health(Profile::Nvidia);
    let hot =
        |health: &mut Health, now_s| read(health, "DCGM_FI_DEV_GPU_TEMP", ReadingPlace::Gpu(0), 99.0, now_s);
    hot(&mut health, 0);
    // The exporter was stopped for an hour.
    hot(&mut health, 3600);
    assert_eq!(health.findings(), []);
    (1..=120).for_each(|more| hot(&mut health, 3600 + 5 * more));
    assert_eq!(health.findings().len(), 1);
}

#[test]
fn readings_at_long_intervals_last_too() {
    let mut health = health(Profile::Nvidia);
    (0..6).for_each(|number| {
        read(&mut health, "DCGM_FI_DEV_GPU_TEMP", ReadingPlace::Gpu(0), 99.0, 300 * number)
    });
    assert_eq!(health.findings().len(), 1);
}

#[test]
fn counters_of_parts_that_are_gone_are_forgotten() {
    let mut health = health(Profile::Nvidia);
    for number in 0..1000 {
        let card = format!("card{number}");
        read(&mut health, "node_amazonefa_retrans_pkts", ReadingPlace::Card(&card), 1.0, 3600 * number);
    }
    assert!((1..100).contains(&health.histories.len()), "{}", health.histories.len());
}
