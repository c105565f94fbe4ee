//! What is measured: operations, sizes and ranks, and how often.

use bedplate_comm::{ElementFormat, Operation};

/// What can be measured, in the order of the table.
pub(super) const OPERATIONS: [Operation; 9] = [
    Operation::AllReduce,
    Operation::AllGather,
    Operation::ReduceScatter,
    Operation::AllToAll,
    Operation::Broadcast,
    Operation::Reduce,
    Operation::Gather,
    Operation::Scatter,
    Operation::Exchange,
];

/// What the word of `--op` means; `all` is every one of them.
pub(super) fn operations(word: &str) -> Result<Vec<Operation>, String> {
    if word == "all" {
        return Ok(OPERATIONS.to_vec());
    }
    let found = OPERATIONS.into_iter().find(|operation| operation.name() == word);
    let known = || OPERATIONS.map(Operation::name).join(", ");
    found.map(|operation| vec![operation]).ok_or_else(|| format!("it is none of {} and all", known()))
}

pub(super) fn format(word: &str) -> Result<ElementFormat, String> {
    let known = || ElementFormat::ALL.map(ElementFormat::name).join(", ");
    ElementFormat::ALL
        .into_iter()
        .find(|format| format.name() == word)
        .ok_or_else(|| format!("it is none of {}", known()))
}

/// `64K`, or `1K..256M` for every eighth size in between.
pub(super) fn sizes(word: &str) -> Result<Vec<u64>, String> {
    let Some((least, most)) = word.split_once("..") else { return Ok(vec![size(word)?]) };
    let (least, most) = (size(least)?, size(most)?);
    if least > most {
        return Err("the smaller size comes first".to_owned());
    }
    let mut sizes: Vec<u64> = std::iter::successors(Some(least), |size| size.checked_mul(8))
        .take_while(|size| *size < most)
        .collect();
    sizes.push(most);
    Ok(sizes)
}

fn size(word: &str) -> Result<u64, String> {
    let bad = || format!("`{word}` is not a size such as 512, 64K, 4M or 1G, up to 64G");
    let digits = word.trim_end_matches(|c: char| !c.is_ascii_digit());
    let factor = match word[digits.len()..].to_ascii_uppercase().as_str() {
        "" | "B" => 1,
        "K" | "KB" | "KIB" => 1 << 10,
        "M" | "MB" | "MIB" => 1 << 20,
        "G" | "GB" | "GIB" => 1 << 30,
        _ => return Err(bad()),
    };
    let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
    let bytes =
        digits.parse::<u64>().ok().filter(|_| is_number).and_then(|number| number.checked_mul(factor));
    bytes.filter(|bytes| (1..=64 << 30).contains(bytes)).ok_or_else(bad)
}

/// The sizes as nccl-tests prints them are numbers of bytes; these are for people.
pub(super) fn size_text(bytes: u64) -> String {
    for (unit, name) in [(1 << 30, "G"), (1 << 20, "M"), (1 << 10, "K")] {
        if bytes >= unit && bytes.is_multiple_of(unit) {
            return format!("{}{name}", bytes / unit);
        }
    }
    bytes.to_string()
}

/// One row to be measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Case {
    pub(super) operation: Operation,
    pub(super) format: ElementFormat,
    pub(super) ranks: u32,
    /// Of the larger buffer of a rank, as nccl-tests counts.
    pub(super) bytes: u64,
}

impl Case {
    /// Whether the large buffer has a part for each rank.
    fn has_parts(&self) -> bool {
        matches!(
            self.operation,
            Operation::AllGather
                | Operation::ReduceScatter
                | Operation::AllToAll
                | Operation::Gather
                | Operation::Scatter
        )
    }

    /// Numbers that one rank gives or gets: a part where there are parts. This is the count that nccl-tests prints.
    pub(super) fn count(&self) -> u64 {
        let numbers = self.bytes / self.format.size() as u64;
        if self.has_parts() { numbers / u64::from(self.ranks) } else { numbers }
    }

    /// Bytes that are really exchanged: parts of equal length.
    pub(super) fn moved(&self) -> u64 {
        let parts = if self.has_parts() { u64::from(self.ranks) } else { 1 };
        self.count() * parts * self.format.size() as u64
    }

    /// How a sample is taken. Calls of small size follow each other without a pause, as in nccl-tests, and a sample is their mean.
    pub(super) fn effort(&self, calls: Option<u32>) -> Effort {
        let (samples, usual) = match self.bytes {
            0..=0xffff => (40, 50),
            0x1_0000..=0xf_ffff => (20, 10),
            0x10_0000..=0xff_ffff => (15, 1),
            0x100_0000..=0x7ff_ffff => (6, 1),
            _ => (4, 1),
        };
        Effort { warmup: if self.bytes < 1 << 24 { 3 } else { 1 }, samples, calls: calls.unwrap_or(usual) }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Effort {
    pub(super) warmup: u32,
    pub(super) samples: u32,
    /// Calls whose mean is one sample.
    pub(super) calls: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        assert_eq!(sizes("1K"), Ok(vec![1024]));
        assert_eq!(sizes("100"), Ok(vec![100]));
        assert_eq!(sizes("1K..256K"), Ok(vec![1 << 10, 8 << 10, 64 << 10, 256 << 10]));
        assert_eq!(sizes("4MB..4MB"), Ok(vec![4 << 20]));
        for wrong in ["", "K", "0", "-1K", "1.5M", "1T", "8M..1M", "1K..", "99999999999G", "1é"] {
            assert!(sizes(wrong).is_err(), "{wrong}");
        }
        assert_eq!([1 << 10, 1000, 256 << 20].map(size_text), ["1K", "1000", "256M"]);
    }

    #[test]
    fn parts_are_equal_and_the_rest_is_left_out() {
        let case =
            Case { operation: Operation::AllGather, format: ElementFormat::F32, ranks: 3, bytes: 1024 };
        assert_eq!((case.count(), case.moved()), (85, 1020));
        let whole = Case { operation: Operation::AllReduce, ..case };
        assert_eq!((whole.count(), whole.moved()), (256, 1024));
    }
}
