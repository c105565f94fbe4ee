//! What people type is understood, and what is printed is what they would have written.

use std::fmt::Display;
use std::str::FromStr;

use bedplate_units::*;
use proptest::prelude::*;

fn reads<T: FromStr<Err = UnitError> + Display>(rows: &[(&str, &str)]) {
    for (typed, printed) in rows {
        let shown =
            typed.parse::<T>().map_or_else(|error| format!("error: {error}"), |value| value.to_string());
        assert_eq!(&shown, printed, "for `{typed}`");
    }
}

#[test]
fn sizes_read_in_either_case_and_print_decimal() {
    reads::<Bytes>(&[
        ("80 GB", "80 GB"),
        ("80gb", "80 GB"),
        ("30.72 TB", "30.72 TB"),
        ("80 GiB", "85.9 GB"),
        ("1,128 GB", "1.128 TB"),
        ("1_000 mb", "1 GB"),
        ("0", "0 B"),
        ("2048 bytes", "2.048 kB"),
        ("999.96 MB", "1 GB"),
        ("80", "error: `80` has no unit; a size reads like `80 GB`"),
        (
            "80 Gigs",
            "error: `Gigs` in `80 Gigs` is not a unit of size; use one of B, kB, MB, GB, TB, PB, KiB, MiB, GiB, TiB",
        ),
        ("-1 GB", "error: `-1 GB` is negative; a size is zero or more"),
        ("1e300 TB", "error: `1e300 TB` is too large for a size"),
        ("", "error: a size is missing; write for example `80 GB`"),
        ("lots", "error: `lots` does not begin with a number; a size reads like `80 GB`"),
        ("nan GB", "error: `nan GB` does not begin with a number; a size reads like `80 GB`"),
    ]);
}

#[test]
fn alternate_form_of_a_size_is_binary_and_precision_means_significant_digits() {
    assert_eq!(format!("{:#}", Bytes::gib(79.25)), "79.25 GiB");
    assert_eq!(format!("{:#.3}", Bytes::gib(93.13)), "93.1 GiB");
    assert_eq!(format!("{:>10}|{:<8}|", Bytes::gb(80.0), Bytes::gb(8.0)), "     80 GB|8 GB    |");
}

#[test]
fn bandwidths_tell_bits_from_bytes() {
    reads::<Bandwidth>(&[
        ("3.35 TB/s", "3.35 TB/s"),
        ("3200 Gbps", "400 GB/s"),
        ("400 Gb/s", "50 GB/s"),
        ("100 Gbit/s", "12.5 GB/s"),
        ("200 MB/s", "200 MB/s"),
        (
            "400 gb/s",
            "error: `gb/s` in `400 gb/s` is not a unit of bandwidth; use one of MB/s, GB/s, TB/s (bytes) or Mbps, Gbps, Tbps (bits)",
        ),
        ("400", "error: `400` has no unit; a bandwidth reads like `400 GB/s`"),
    ]);
}

#[test]
fn operations_and_their_rates_keep_data_sheet_digits() {
    reads::<FlopRate>(&[
        ("989.5 TFLOP/s", "989.5 TFLOP/s"),
        ("1979 TFLOPS", "1.979 PFLOP/s"),
        ("2.25 PF", "2.25 PFLOP/s"),
        ("3", "error: `3` has no unit; a floating-point rate reads like `989.5 TFLOP/s`"),
    ]);
    reads::<Flops>(&[("3.8e25", "38 YFLOP"), ("449 GFLOP", "449 GFLOP")]);
    reads::<Watts>(&[("700 W", "700 W"), ("10.2 kW", "10.2 kW")]);
}

#[test]
fn a_duration_is_exact_in_its_largest_unit() {
    for (seconds, expected) in [
        (0.0, (0.0, "s")),
        (1.5, (1.5, "s")),
        (300.0, (5.0, "min")),
        (5400.0, (90.0, "min")),
        (172_800.0, (2.0, "d")),
    ] {
        assert_eq!(Seconds::new(seconds).exactly(), expected);
    }
}

#[test]
fn durations_compose_and_print_in_the_unit_a_person_would_choose() {
    reads::<Seconds>(&[
        ("600ms", "600 ms"),
        ("8 us", "8 us"),
        ("1h30m", "90 min"),
        ("2 d", "2 days"),
        ("54 days", "54 days"),
        ("90 s", "90 s"),
        ("14.66s", "14.66 s"),
        ("0", "0 s"),
        (
            "5 parsecs",
            "error: `parsecs` in `5 parsecs` is not a unit of duration; use one of ns, us, ms, s, min (m), h, d (days)",
        ),
        ("5", "error: `5` has no unit; a duration reads like `600ms`"),
        ("1h-3m", "error: `1h-3m` is negative; a duration is zero or more"),
    ]);
}

#[test]
fn tokens_and_money_read_as_papers_and_invoices_write_them() {
    reads::<Tokens>(&[
        ("15T tokens", "15T tokens"),
        ("15T", "15T tokens"),
        ("8192", "8.192K tokens"),
        ("1.4e12", "1.4T tokens"),
    ]);
    reads::<Dollars>(&[
        ("$98.32", "$98.32"),
        ("1,234.5", "$1,234.50"),
        ("$1.2M", "$1.2M"),
        ("$0.0245", "$0.025"),
        ("12 EUR", "error: `EUR` in `12 EUR` is not a unit of sum of money; use one of K, M, B, USD"),
    ]);
    reads::<DollarRate>(&[("$98.32/h", "$98.32/h"), ("55.04", "$55.04/h")]);
    assert_eq!(Count(8_030_261_248).to_string(), "8.03B");
    assert_eq!(grouped(8_030_261_248), "8,030,261,248");
    assert_eq!(grouped(7), "7");
}

#[test]
fn dividing_an_amount_by_its_rate_gives_the_time() {
    assert_eq!(Bytes::gb(400.0) / Bandwidth::gb_per_s(400.0), Seconds::new(1.0));
    assert_eq!(Flops::new(2e12) / FlopRate::tflops(1.0), Seconds::new(2.0));
    assert_eq!((DollarRate::per_hour(Dollars::new(10.0)) * Seconds::hours(3.0)).to_string(), "$30.00");
    assert_eq!(Bytes::gb(1.0) / Bytes::mb(1.0), 1000.0);
}

proptest! {
    #[test]
    fn a_printed_size_reads_back_within_its_rounding(value in 1.0..1e24f64) {
        let size = Bytes::new(value);
        let back: Bytes = size.to_string().parse().unwrap();
        prop_assert!((back / size - 1.0).abs() < 1e-3, "{size:?} came back as {back:?}");
        let binary: Bytes = format!("{size:#}").parse().unwrap();
        prop_assert!((binary / size - 1.0).abs() < 1e-3);
    }

    #[test]
    fn a_printed_duration_reads_back_within_its_rounding(value in 1e-9..1e9f64) {
        let duration = Seconds::new(value);
        let back: Seconds = duration.to_string().parse().unwrap();
        prop_assert!((back / duration - 1.0).abs() < 1e-3, "{duration:?} came back as {back:?}");
    }

    #[test]
    fn no_text_makes_a_parser_panic(text in "\\PC{0,40}") {
        let _ = text.parse::<Bytes>();
        let _ = text.parse::<Bandwidth>();
        let _ = text.parse::<FlopRate>();
        let _ = text.parse::<Flops>();
        let _ = text.parse::<Seconds>();
        let _ = text.parse::<Tokens>();
        let _ = text.parse::<Dollars>();
        let _ = text.parse::<DollarRate>();
        let _ = text.parse::<Watts>();
    }
}
