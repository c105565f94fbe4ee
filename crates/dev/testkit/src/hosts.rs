//! A processor as `bedplate bench machine` describes one, for tests of plans.

/// Its section of a catalog, under the name `host`.
pub const PLAIN_HOST: &str = include_str!("host.toml");

/// The same with so many threads and with collectives of two and four ranks, each a nanosecond a byte.
pub fn host_of_ranks(threads: u32, operations: &[&str]) -> String {
    let mut text = PLAIN_HOST.replace("threads = 2", &format!("threads = {threads}"));
    for (operation, ranks) in operations.iter().flat_map(|operation| [(operation, 2), (operation, 4)]) {
        text += &format!(
            "[[accelerator.collective]]\nop = \"{operation}\"\nranks = {ranks}\nbytes = [1, 1e12]\nus = [1e-3, 1e9]\n"
        );
    }
    text
}
