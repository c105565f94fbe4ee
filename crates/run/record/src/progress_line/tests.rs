//! Lines of progress by example.

use proptest::prelude::*;

use super::*;

const LINE: ProgressLine = ProgressLine {
    step: 1234,
    steps: 10_000,
    loss: 3.21456,
    tokens_per_second: 123_456.0,
    mfu: Some(0.412),
    gradient_norm: 0.8731,
    learning_rate: 3e-4,
    left: Some(Seconds::new(3_725.0)),
};

#[test]
fn a_line_shows_as_much_as_its_width_allows() {
    let cases = [
        (
            120,
            "1234/10000  [===>                          ]  loss 3.215  123k tok/s  MFU 41%  norm 0.873  lr 3.0e-4  1h02m left",
        ),
        (
            100,
            "1234/10000  [==>               ]  loss 3.215  123k tok/s  MFU 41%  norm 0.873  lr 3.0e-4  1h02m left",
        ),
        (80, "1234/10000  loss 3.215  123k tok/s  MFU 41%  norm 0.873  lr 3.0e-4  1h02m left"),
        (70, "1234/10000  loss 3.215  123k tok/s  MFU 41%  norm 0.873  1h02m left"),
        (50, "1234/10000  loss 3.215  123k tok/s  1h02m left"),
        (25, "1234/10000  loss 3.215"),
        (5, "1234/"),
    ];
    for (width, expected) in cases {
        assert_eq!(LINE.within(width), expected);
    }
}

#[test]
fn numbers_of_any_size_stay_short() {
    let cases = [
        (LINE.with(f64::NAN, 0.0, 5.0), "1234/10000  loss NaN  5.00 tok/s  norm 0  lr 3.0e-4"),
        (LINE.with(f64::INFINITY, 1e9, 999.7), "1234/10000  loss inf  1.00k tok/s  norm 1.0e9  lr 3.0e-4"),
        (
            LINE.with(12.3456, 123.456, 12_345_678.0),
            "1234/10000  loss 12.35  12.3M tok/s  norm 123  lr 3.0e-4",
        ),
        (
            LINE.with(0.001234, 0.00001, 2.5e9),
            "1234/10000  loss 0.001234  2.50G tok/s  norm 1.0e-5  lr 3.0e-4",
        ),
        (LINE.with(12345.4, 5.0, 0.0), "1234/10000  loss 12345  0 tok/s  norm 5.00  lr 3.0e-4"),
    ];
    for (line, expected) in cases {
        assert_eq!(line.in_full(), expected);
    }
}

impl ProgressLine {
    fn with(self, loss: f64, gradient_norm: f64, tokens_per_second: f64) -> Self {
        Self { loss, gradient_norm, tokens_per_second, mfu: None, left: None, ..self }
    }
}

#[test]
fn durations_have_two_units_at_most() {
    let cases = [
        (0.0, "0s"),
        (59.4, "59s"),
        (59.6, "1m00s"),
        (725.0, "12m05s"),
        (11_220.0, "3h07m"),
        (187_200.0, "2d04h"),
    ];
    for (seconds, expected) in cases {
        assert_eq!(duration(Seconds::new(seconds)), expected);
    }
}

#[test]
fn the_bar_is_empty_at_the_start_and_full_at_the_end() {
    let bar = |step| ProgressLine { step, steps: 4, ..LINE }.bar(8);
    assert_eq!([0, 1, 4, 5].map(bar), ["[>       ]", "[==>     ]", "[========]", "[========]"]);
}

proptest! {
    #[test]
    fn no_line_is_wider_than_allowed(
        step in 0u64..1 << 50, loss in proptest::num::f64::ANY, rate in proptest::num::f64::ANY, width in 1usize..200
    ) {
        let line = ProgressLine { step, loss, tokens_per_second: rate, ..LINE };
        prop_assert!(line.within(width).chars().count() <= width);
    }
}
