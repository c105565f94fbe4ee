//! Logs of good and bad runs, of NCCL 2.18 to 2.28, are told apart, and the flaw is named.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

use std::fs;
use std::path::{Path, PathBuf};

use bedplate_catalog::Catalog;
use bedplate_doctor::nccl::{LogReader, NcclLog, judge_log};
use bedplate_doctor::{Check, CheckVerdict, FlawPricing, worst};
use expect_test::expect;
use proptest::prelude::*;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/logs")
}

fn read(name: &str) -> NcclLog {
    let mut reader = LogReader::default();
    fs::read_to_string(folder().join(name)).unwrap().lines().for_each(|line| reader.line(line));
    reader.finish()
}

fn names(prefix: &str) -> Vec<String> {
    let entries =
        fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> =
        entries.filter(|name| name.starts_with(prefix) && name.ends_with(".log")).collect();
    names.sort();
    names
}

fn flaws(checks: &[Check]) -> Vec<String> {
    let bad = checks.iter().filter(|check| check.verdict != CheckVerdict::Pass);
    bad.map(|check| format!("{} {}: {}", check.verdict, check.rule, check.found)).collect()
}

#[test]
fn runs_without_flaws_are_passed() {
    let names = names("good-");
    assert!(names.len() >= 11);
    for name in names {
        let checks = judge_log(&read(&name), None);
        assert_eq!(worst(&checks), CheckVerdict::Pass, "{name}: {:#?}", flaws(&checks));
    }
}

#[test]
fn runs_with_flaws_are_not_passed_and_the_flaw_is_named() {
    let price = FlawPricing::new("p5.48xlarge", &Catalog::builtin());
    let mut table = String::new();
    for name in names("bad-") {
        let is_p5 = name.contains("eight-of-32");
        let checks = judge_log(&read(&name), price.as_ref().filter(|_| is_p5));
        assert!(worst(&checks) > CheckVerdict::Pass, "{name} is passed");
        table += &format!("{name}\n");
        flaws(&checks).iter().for_each(|flaw| table += &format!("    {flaw}\n"));
    }
    expect![[r#"
        bad-2.18.5-plugin-not-found.log
            fail nccl/network: fell back to sockets: plugin not found
            warn nccl/channels: only 2 channels for collectives
        bad-2.19.3-ib-disabled.log
            fail nccl/network: fell back to sockets: NCCL_IB_DISABLE=1 forbids InfiniBand
            fail environment/nccl-ib-disable: NCCL_IB_DISABLE=1 is set
        bad-2.20.5-p2p-disabled.log
            fail nccl/within-node: 8 of 8 connections within a node go through the host's memory: NCCL_P2P_DISABLE=1 is set
            fail environment/nccl-p2p-disable: NCCL_P2P_DISABLE=1 is set
        bad-2.21.5-card-too-far.log
            fail nccl/gpu-direct: 8 of 8 connections by the network copy through the host: GPU and card are too far apart (distance 8, limit 5)
        bad-2.21.5-plugin-without-libfabric.log
            fail nccl/network: fell back to sockets: the plugin needs libfabric.so.1, which cannot be opened
        bad-2.22.3-plugin-too-old.log
            fail nccl/network: fell back to sockets: the plugin is too old for this NCCL
        bad-2.23.4-no-ibverbs.log
            fail nccl/network: fell back to sockets: no InfiniBand device found
        bad-2.23.4-plugin-not-found.log
            fail nccl/network: fell back to sockets: plugin not found
        bad-2.24.3-no-efa-provider.log
            fail nccl/network: fell back to sockets: the plugin gave up
        bad-2.25.1-tcp-provider.log
            fail nccl/gpu-direct: 8 of 8 connections by the network copy through the host: the log does not say why
            fail nccl/provider: the plugin uses libfabric's provider tcp, not efa
        bad-2.26.2-eight-of-32-cards.log
            fail nccl/cards: a process found 8 network cards of 32
        bad-2.26.5-socket-asked-for.log
            fail nccl/network: fell back to sockets: plugin not found, and InfiniBand was not tried; NCCL_NET=Socket looks like this
        bad-2.27.3-network-within-node.log
            fail nccl/network: fell back to sockets: plugin not found, and InfiniBand was not tried; NCCL_NET=Socket looks like this
            warn nccl/network-within-node: 4 connections between ranks of one host go by the network: NCCL_SHM_DISABLE=1 is set
            warn nccl/channels: only 2 channels for collectives
            fail environment/nccl-p2p-disable: NCCL_P2P_DISABLE=1 is set
            warn environment/nccl-shm-disable: NCCL_SHM_DISABLE=1 is set
        bad-2.27.5-a-rank-never-came.log
            fail nccl/initialisation: a communicator was begun and not finished on rank 2
            warn nccl/warnings: NCCL warned 1 times
        bad-2.28.3-mixed-versions.log
            fail nccl/initialisation: a communicator was begun and not finished on rank 0, 1
            fail nccl/version: ranks use different versions of NCCL: 2.21.5+cuda12.4, 2.28.3+cuda13.0
            warn nccl/warnings: NCCL warned 1 times
        bad-2.28.3-plugin-without-libfabric.log
            fail nccl/network: fell back to sockets: the plugin needs libfabric.so.1, which cannot be opened
        bad-2.28.3-two-channels.log
            warn nccl/channels: only 2 channels for collectives: NCCL_MAX_NCHANNELS=2 is set
            warn environment/nccl-max-nchannels: NCCL_MAX_NCHANNELS=2 is set
        bad-2.28.7-no-peermem.log
            fail nccl/gpu-direct: 8 of 8 connections by the network copy through the host: the card or the driver does not offer it
        bad-2.28.9-nvlink-broken.log
            fail nccl/within-node: 8 of 8 connections within a node go through the host's memory: P2P is disabled between NVLINK connected GPUs 1 and 0. This should not be the case given their connectivity, and is probably due to a hardware issue. If you still want to proceed, you can set NCCL_IGNORE_DISABLED_P2P=1.
        bad-2.28.9-pinned-to-ring.log
            warn nccl/nvls: NCCL_NVLS_ENABLE=0 turns NVLink SHARP off
            warn environment/nccl-algo: NCCL_ALGO=Ring is set
            warn environment/nccl-nvls-enable: NCCL_NVLS_ENABLE=0 is set
        bad-no-nccl-lines.log
            fail nccl/no-lines: no line of NCCL was found
    "#]].assert_eq(&table);
}

#[test]
fn what_carried_the_traffic_is_counted() {
    let log = read("good-2.28.3-efa-timestamps.log");
    assert_eq!((log.ranks, log.nodes), (4, 2));
    assert_eq!(log.hosts.iter().map(String::as_str).collect::<Vec<_>>(), ["ip-10-1-0-11", "ip-10-1-0-12"]);
    assert_eq!(
        (log.transport.peer_to_peer, log.transport.network_gpu_direct, log.transport.network_staged),
        (4, 8, 0)
    );
    assert_eq!(log.network_connections.get("AWS Libfabric"), Some(&8));
    assert_eq!(log.collective_channels, Some(16));
    assert_eq!((log.ofi.provider.as_deref(), log.ofi.cards), (Some("efa"), Some(16)));
    let largest =
        log.algorithms.iter().find(|it| it.function == "AllReduce" && it.algorithm == "nvls-tree").unwrap();
    assert_eq!((largest.protocol.as_str(), largest.largest_bytes), ("Simple", 1 << 30));
}

#[test]
fn versions_before_2_24_number_their_algorithms() {
    let log = read("good-2.21.5-efa-pxn.log");
    let told: Vec<String> =
        log.algorithms.iter().map(|it| format!("{} {}", it.algorithm, it.protocol)).collect();
    assert_eq!(told, ["ring Simple", "tree LL128"]);
}

#[test]
fn any_text_is_read_without_harm() {
    let mut reader = LogReader::default();
    for line in [
        "NCCL INFO ",
        "x NCCL INFO Channel  : -> via",
        "h:1:2 [0] NCCL INFO Channel 00/0 : 99999999999[0] -> 1[1] via NET/",
        "h:1:2 [0] NCCL WARN ",
        ":::: [0] NCCL INFO  Bytes -> Algo  proto ",
        "NCCL INFO  coll channels, x",
        "NCCL version ",
        "\u{0}\u{fffd}",
    ] {
        reader.line(line);
    }
    judge_log(&reader.finish(), None);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// What a launcher puts before lines and what other programs write between them changes no verdict.
    #[test]
    fn labels_and_other_programs_change_no_verdict(
        label in "(|[0-9]{1,4}: |\\[1,[0-9]{1,3}\\]<stdout>:)",
        noise in prop::collection::vec("[ -MO-~]{0,60}", 1..5),
        every in 1usize..6,
    ) {
        for name in names("good-").into_iter().chain(names("bad-")) {
            let mut reader = LogReader::default();
            let text = fs::read_to_string(folder().join(&name)).unwrap();
            for (at, line) in text.lines().enumerate() {
                reader.line(&format!("{label}{line}"));
                if at % every == 0 {
                    reader.line(&noise[at % noise.len()]);
                }
            }
            let told = flaws(&judge_log(&reader.finish(), None));
            prop_assert_eq!(told, flaws(&judge_log(&read(&name), None)), "{}", name);
        }
    }

    #[test]
    fn arbitrary_bytes_never_harm(bytes in prop::collection::vec(any::<u8>(), 0..4000)) {
        let mut reader = LogReader::default();
        String::from_utf8_lossy(&bytes).lines().for_each(|line| reader.line(line));
        prop_assert!(!judge_log(&reader.finish(), None).is_empty());
    }
}
