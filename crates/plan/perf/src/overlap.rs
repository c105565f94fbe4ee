//! Two concurrent activities: each slows the other while both run, and the rest runs at full speed.
//!
//! After Galvatron (layer_cost.py): `a` seconds of computation overlapped with `b` seconds of communication. While
//! both run, computation takes `1 + c` and communication `1 + n` times as long. When one ends, the
//! other runs alone. This is neither `max(a, b)` nor a fixed hidden share: little communication costs
//! `b (1 + n) c / (1 + c)`, much of it costs what does not fit behind the computation.

/// How concurrent activities slow each other: 0 is free, 1 doubles the time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Contention {
    pub compute: f64,
    pub network: f64,
}

impl Contention {
    /// Seconds until both are done.
    pub fn together(self, compute: f64, network: f64) -> f64 {
        let slow_compute = compute * (1.0 + self.compute);
        let slow_network = network * (1.0 + self.network);
        if slow_compute <= slow_network {
            slow_compute + network - slow_compute / (1.0 + self.network)
        } else {
            slow_network + compute - slow_network / (1.0 + self.compute)
        }
    }

    /// What `network` adds to `compute` when it runs behind it.
    pub fn exposed(self, compute: f64, network: f64) -> f64 {
        self.together(compute, network) - compute
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn without_contention_the_longer_one_counts() {
        let free = Contention { compute: 0.0, network: 0.0 };
        assert_eq!(free.together(3.0, 2.0), 3.0);
        assert_eq!(free.together(2.0, 3.0), 3.0);
    }

    proptest! {
        #[test]
        fn together_lies_between_the_longer_one_and_the_sum_of_slowed_ones(
            a in 0.0..10.0f64, b in 0.0..10.0f64, c in 0.0..1.0f64, n in 0.0..1.0f64,
        ) {
            let both = Contention { compute: c, network: n }.together(a, b);
            prop_assert!(both >= a.max(b) - 1e-12);
            prop_assert!(both <= a * (1.0 + c) + b * (1.0 + n) + 1e-12);
        }

        #[test]
        fn more_of_either_never_ends_sooner(
            a in 0.0..10.0f64, b in 0.0..10.0f64, more in 0.0..5.0f64, c in 0.0..1.0f64, n in 0.0..1.0f64,
        ) {
            let contention = Contention { compute: c, network: n };
            prop_assert!(contention.together(a + more, b) >= contention.together(a, b) - 1e-12);
            prop_assert!(contention.together(a, b + more) >= contention.together(a, b) - 1e-12);
        }
    }
}
