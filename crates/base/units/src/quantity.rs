//! The two macros that define a quantity and the relation between three of them.

/// Defines a quantity: an `f64` in its base unit with the arithmetic that keeps its dimension.
///
/// Order is total ([`f64::total_cmp`]), so quantities sort and compare without `partial_cmp`.
macro_rules! quantity {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Default)]
        pub struct $name(f64);

        impl $name {
            pub const ZERO: Self = Self(0.0);

            /// From a number in the base unit.
            pub const fn new(value: f64) -> Self {
                Self(value)
            }

            /// The number in the base unit.
            pub const fn get(self) -> f64 {
                self.0
            }

            pub fn is_zero(self) -> bool {
                self.0 == 0.0
            }

            /// This minus `other`, but never below zero.
            pub fn saturating_sub(self, other: Self) -> Self {
                Self((self.0 - other.0).max(0.0))
            }
        }

        impl PartialEq for $name {
            fn eq(&self, other: &Self) -> bool {
                self.cmp(other).is_eq()
            }
        }
        impl Eq for $name {}
        impl PartialOrd for $name {
            fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
                Some(self.cmp(other))
            }
        }
        impl Ord for $name {
            fn cmp(&self, other: &Self) -> std::cmp::Ordering {
                // Adding zero turns -0.0 into 0.0, which total_cmp would otherwise keep apart.
                (self.0 + 0.0).total_cmp(&(other.0 + 0.0))
            }
        }
        impl std::ops::Add for $name {
            type Output = Self;
            fn add(self, other: Self) -> Self {
                Self(self.0 + other.0)
            }
        }
        impl std::ops::AddAssign for $name {
            fn add_assign(&mut self, other: Self) {
                self.0 += other.0;
            }
        }
        impl std::ops::Sub for $name {
            type Output = Self;
            fn sub(self, other: Self) -> Self {
                Self(self.0 - other.0)
            }
        }
        impl std::ops::Mul<f64> for $name {
            type Output = Self;
            fn mul(self, factor: f64) -> Self {
                Self(self.0 * factor)
            }
        }
        impl std::ops::Mul<$name> for f64 {
            type Output = $name;
            fn mul(self, quantity: $name) -> $name {
                quantity * self
            }
        }
        impl std::ops::Div<f64> for $name {
            type Output = Self;
            fn div(self, divisor: f64) -> Self {
                Self(self.0 / divisor)
            }
        }
        impl std::ops::Div for $name {
            type Output = f64;
            fn div(self, other: Self) -> f64 {
                self.0 / other.0
            }
        }
        impl std::iter::Sum for $name {
            fn sum<I: Iterator<Item = Self>>(items: I) -> Self {
                items.fold(Self::ZERO, |total, item| total + item)
            }
        }
        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, "{}({})", stringify!($name), self)
            }
        }
    };
}

/// States `$amount / $time = $rate` and the three equations that follow from it.
macro_rules! rate_of {
    ($amount:ident / $time:ident = $rate:ident) => {
        impl std::ops::Div<$time> for $amount {
            type Output = $rate;
            fn div(self, time: $time) -> $rate {
                <$rate>::new(self.get() / time.get())
            }
        }
        impl std::ops::Div<$rate> for $amount {
            type Output = $time;
            fn div(self, rate: $rate) -> $time {
                <$time>::new(self.get() / rate.get())
            }
        }
        impl std::ops::Mul<$time> for $rate {
            type Output = $amount;
            fn mul(self, time: $time) -> $amount {
                <$amount>::new(self.get() * time.get())
            }
        }
        impl std::ops::Mul<$rate> for $time {
            type Output = $amount;
            fn mul(self, rate: $rate) -> $amount {
                rate * self
            }
        }
    };
}

pub(crate) use {quantity, rate_of};
