//! Names and addresses of a gang's nodes, as the environment of its ranks tells them.

/// `name=address` of each node of the gang, in order (`BEDPLATE_ADDRESSES`).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Addresses(Vec<(String, String)>);

impl Addresses {
    pub(super) fn of_environment() -> Self {
        Self::parse(&std::env::var("BEDPLATE_ADDRESSES").unwrap_or_default())
    }

    fn parse(text: &str) -> Self {
        let pairs = text.split(',').filter_map(|pair| pair.split_once('='));
        Self(pairs.map(|(name, address)| (name.to_owned(), address.to_owned())).collect())
    }

    /// By what other programs can reach a node. On one machine only we know the names of nodes, and where
    /// each node has a loopback address of its own, that is what serves.
    pub(super) fn reachable(&self, name: &str) -> String {
        let has_own = |address: &str| {
            address.starts_with("127.") && self.0.iter().filter(|(_, other)| other == address).count() == 1
        };
        let is_one_machine = self.0.iter().all(|(_, address)| address.starts_with("127."));
        let found = self.0.iter().find(|(known, _)| known == name);
        match found {
            Some((_, address)) if is_one_machine && has_own(address) => address.clone(),
            _ => name.to_owned(),
        }
    }

    /// The node with this name or address of its own.
    pub(super) fn name<'a>(&'a self, name_or_address: &'a str) -> &'a str {
        let mut holders = self.0.iter().filter(|(_, address)| address == name_or_address);
        match (holders.next(), holders.next()) {
            (Some((name, _)), None) => name,
            _ => name_or_address,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_of_one_machine_are_reached_by_their_own_addresses_if_they_have_some() {
        let own = Addresses::parse("n1=127.0.0.1,n2=127.0.0.2");
        assert_eq!(
            (own.reachable("n2"), own.name("127.0.0.2"), own.name("n2")),
            ("127.0.0.2".into(), "n2", "n2")
        );
        let shared = Addresses::parse("n1=127.0.0.1,n2=127.0.0.1");
        assert_eq!((shared.reachable("n2"), shared.name("127.0.0.1")), ("n2".into(), "127.0.0.1"));
        let hosts = Addresses::parse("n1=10.0.0.1,n2=10.0.0.2");
        assert_eq!((hosts.reachable("n2"), hosts.name("10.0.0.2")), ("n2".into(), "n2"));
        assert_eq!(Addresses::default().reachable("n1"), "n1");
    }
}
