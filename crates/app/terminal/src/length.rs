//! Flags that take the length of a sequence.

use bedplate_units::sequence_length;
use clap::builder::TypedValueParser;

/// A parser of lengths from 1 to `most`.
pub fn length<T>(most: u64) -> impl TypedValueParser<Value = T>
where
    T: TryFrom<u64> + Clone + Send + Sync + 'static,
{
    move |text: &str| sequence_length::<T>(text, most)
}
