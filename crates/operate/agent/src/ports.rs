//! A free port at which the ranks of a gang meet.

use std::collections::BTreeSet;
use std::net::TcpListener;

use crate::random;

/// Below the ports that the kernel gives to outgoing connections, so that none of those takes it meanwhile.
const FIRST: u16 = 20_000;
const COUNT: u16 = 10_000;
const TRIES: u16 = 200;

/// A port on `address` that is free and that no run of this node holds.
pub(crate) fn find(address: &str, held: &BTreeSet<u16>) -> Option<u16> {
    let start = (random::number() % u64::from(COUNT)) as u16;
    let candidates = (0..TRIES).map(|step| FIRST + (start + step) % COUNT);
    candidates.filter(|port| !held.contains(port)).find(|port| TcpListener::bind((address, *port)).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_that_is_listened_on_or_held_is_not_found() {
        let port = find("127.0.0.1", &BTreeSet::new()).unwrap();
        assert!((FIRST..FIRST + COUNT).contains(&port));
        let all: BTreeSet<u16> = (FIRST..FIRST + COUNT).collect();
        assert_eq!(find("127.0.0.1", &all), None);
    }
}
