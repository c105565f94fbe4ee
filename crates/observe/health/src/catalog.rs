//! The XID catalog: what each code means, and what it calls for under each profile.

use bedplate_finding::{Action, Layer, Severity};

use crate::Profile;

const CSV: &str = include_str!("../../../../data/health/xid.csv");

/// One code of the catalog.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct XidEntry {
    pub xid: u32,
    pub mnemonic: String,
    pub meaning: String,
    /// The action in NVIDIA's words.
    pub nvidia_says: String,
    actions: [Action; 3],
    pub layer: Layer,
    pub decode: Decode,
    /// Another XID of the same GPU usually caused it.
    pub follows_another: bool,
    /// Keys of `data/health/sources.md`.
    pub sources: String,
}

/// What in the message decides beside the code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decode {
    Nothing,
    /// Whether it says `Fatal` or `Nonfatal`.
    Severity,
    /// The recovery action that the driver asks for.
    Recovery,
}

impl XidEntry {
    pub fn action(&self, profile: Profile) -> Action {
        self.actions[profile as usize]
    }
}

/// How bad something is that calls for this action.
pub(crate) fn severity_of(action: Action) -> Severity {
    match action {
        Action::Record | Action::Watch => Severity::Info,
        Action::Alert | Action::RestartJob => Severity::Warning,
        Action::ResetDevice | Action::Drain | Action::Reboot | Action::Replace => Severity::Critical,
    }
}

/// All codes, in order.
#[derive(Debug, Clone)]
pub struct XidCatalog {
    entries: Vec<XidEntry>,
}

impl Default for XidCatalog {
    fn default() -> Self {
        Self { entries: CSV.lines().skip(1).map(entry).collect() }
    }
}

impl XidCatalog {
    pub fn entries(&self) -> &[XidEntry] {
        &self.entries
    }

    pub fn entry(&self, xid: u32) -> Option<&XidEntry> {
        self.entries.binary_search_by_key(&xid, |entry| entry.xid).ok().map(|at| &self.entries[at])
    }
}

fn entry(line: &str) -> XidEntry {
    let fields = fields(line);
    let field = |at: usize| fields.get(at).cloned().unwrap_or_default();
    let action = |at: usize| Action::named(&field(at)).unwrap_or(Action::Alert);
    XidEntry {
        xid: field(0).parse().unwrap_or(0),
        mnemonic: field(1),
        meaning: field(2),
        nvidia_says: field(3),
        actions: [action(4), action(5), action(6)],
        layer: if field(7) == "application" { Layer::Application } else { Layer::Hardware },
        decode: match field(8).as_str() {
            "severity" => Decode::Severity,
            "recovery" => Decode::Recovery,
            _ => Decode::Nothing,
        },
        follows_another: field(9) == "yes",
        sources: field(10),
    }
}

/// The fields of a line of CSV; a field with commas is in quotes.
fn fields(line: &str) -> Vec<String> {
    let mut fields = vec![String::new()];
    let mut is_quoted = false;
    for character in line.chars() {
        match character {
            '"' => is_quoted = !is_quoted,
            ',' if !is_quoted => fields.push(String::new()),
            other => fields.last_mut().expect("it begins with one").push(other),
        }
    }
    fields
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_catalog_reads_whole_and_in_order() {
        let catalog = XidCatalog::default();
        assert_eq!(catalog.entries().len(), 172);
        assert!(catalog.entries().windows(2).all(|pair| pair[0].xid < pair[1].xid));
        assert!(catalog.entries().iter().all(|entry| entry.xid > 0 && !entry.mnemonic.is_empty()));
        assert!(CSV.lines().skip(1).all(|line| fields(line).len() == 11));
        let actions = |line: &str| fields(line)[4..7].iter().all(|name| Action::named(name).is_some());
        assert!(CSV.lines().skip(1).all(actions));
    }

    #[test]
    fn profiles_differ_where_vendors_do() {
        let catalog = XidCatalog::default();
        let of = |xid| Profile::ALL.map(|profile| catalog.entry(xid).unwrap().action(profile));
        assert_eq!(of(63), [Action::Watch, Action::Replace, Action::Replace]);
        assert_eq!(of(64), [Action::ResetDevice, Action::Replace, Action::Replace]);
        assert_eq!(of(79), [Action::Reboot, Action::Replace, Action::Replace]);
        assert_eq!(of(94), [Action::RestartJob, Action::RestartJob, Action::Replace]);
        assert_eq!(of(95), [Action::ResetDevice, Action::Replace, Action::Replace]);
        assert_eq!(of(13), [Action::RestartJob; 3]);
        for xid in [48, 74, 119, 120, 140] {
            assert!(of(xid).iter().all(|action| action.takes_node_out_of_service()), "{xid}");
        }
    }
}
