//! Lines of the kernel log, and the XIDs in them.

/// A record of `/dev/kmsg`, without what follows its first line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KernelLine<'a> {
    /// 0 is an emergency, 7 is for debugging.
    pub level: u8,
    /// Counts all records since the host started.
    pub sequence: u64,
    /// Microseconds since the host started.
    pub at_us: u64,
    pub text: &'a str,
}

impl<'a> KernelLine<'a> {
    /// Reads `6,1234,987654,-;text`. Lines of the dictionary, which begin with a space, are none.
    pub fn parse(record: &'a str) -> Option<Self> {
        let (head, text) = record.split_once(';')?;
        let mut fields = head.split(',');
        let priority: u32 = fields.next()?.trim().parse().ok()?;
        let sequence = fields.next()?.parse().ok()?;
        let at_us = fields.next()?.parse().ok()?;
        let text = text.split('\n').next().unwrap_or("").trim_end();
        Some(Self { level: (priority & 7) as u8, sequence, at_us, text })
    }
}

/// An XID as the driver writes it to the kernel log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct XidLine<'a> {
    pub bus: PciAddress,
    pub xid: u32,
    /// A fault of an NVSwitch, whose codes are others.
    pub is_switch: bool,
    pub process: Option<u32>,
    pub text: &'a str,
}

/// Where a device is on the PCI bus.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct PciAddress {
    pub domain: u32,
    pub bus: u8,
    pub device: u8,
}

impl PciAddress {
    /// Reads `PCI:0000:3b:00`, `0000:3b:00.0` or `00000000:3B:00.0`.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.strip_prefix("PCI:").unwrap_or(text);
        let mut parts = text.split(':');
        let domain = u32::from_str_radix(parts.next()?, 16).ok()?;
        let bus = u8::from_str_radix(parts.next()?, 16).ok()?;
        let device = parts.next()?.split('.').next()?;
        let device = u8::from_str_radix(device, 16).ok()?;
        parts.next().is_none().then_some(Self { domain, bus, device })
    }
}

impl std::fmt::Display for PciAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:04x}:{:02x}:{:02x}", self.domain, self.bus, self.device)
    }
}

impl<'a> XidLine<'a> {
    /// Reads `NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python, GPU has fallen off the bus.` and the `SXid` of switches.
    pub fn parse(line: &'a str) -> Option<Self> {
        let at = line.find("Xid (")?;
        let is_switch = line[..at].ends_with('S');
        let is_ours = line[..at].contains("NVRM") || (is_switch && line[..at].contains("nvswitch"));
        let (bus, rest) = line[at + "Xid (".len()..].split_once(')')?;
        let rest = rest.strip_prefix(':')?.trim_start();
        let digits = rest.find(|character: char| !character.is_ascii_digit()).unwrap_or(rest.len());
        let xid = rest[..digits].parse().ok()?;
        let text = rest[digits..].trim_start_matches([',', ' ']);
        let process = text.split_once("pid=").and_then(|(_, rest)| leading_number(rest));
        is_ours.then_some(Self { bus: PciAddress::parse(bus)?, xid, is_switch, process, text })
    }
}

fn leading_number(text: &str) -> Option<u32> {
    let text = text.trim_start_matches('\'');
    let digits = text.find(|character: char| !character.is_ascii_digit()).unwrap_or(text.len());
    text[..digits].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn xids_are_read_in_all_their_spellings() {
        let address = PciAddress { domain: 0, bus: 0x3b, device: 0 };
        for (line, xid, process) in [
            (
                "NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
                79,
                None,
            ),
            ("NVRM: Xid (0000:3b:00): 43, Ch 00000010", 43, None),
            ("[ 12.3] NVRM: Xid (PCI:0000:3b:00): 31, pid=4711, name=python3, Ch 00000008", 31, Some(4711)),
            ("NVRM: Xid (PCI:0000:3b:00): 48", 48, None),
        ] {
            let read = XidLine::parse(line).unwrap();
            assert_eq!((read.bus, read.xid, read.process, read.is_switch), (address, xid, process, false));
        }
        assert_eq!(PciAddress::parse("00000000:3B:00.0"), Some(address));
    }

    proptest::proptest! {
        /// What is written as the driver writes it is read as it was.
        #[test]
        fn an_xid_is_read_as_the_driver_writes_it(
            domain in 0u32..0x10000, bus: u8, device in 0u8..32, xid in 0u32..1000,
            process in proptest::option::of(1u32..4_194_304), sequence: u64, at_us: u64, level in 0u8..8,
        ) {
            let bus = PciAddress { domain, bus, device };
            proptest::prop_assert_eq!(PciAddress::parse(&bus.to_string()), Some(bus));
            let pid = process.map_or("'<unknown>'".to_owned(), |pid| pid.to_string());
            let text = format!("pid={pid}, name=python, Ch 00000008");
            let record = format!("{level},{sequence},{at_us},-;NVRM: Xid (PCI:{bus}): {xid}, {text}\n SUBSYSTEM=pci\n");
            let line = KernelLine::parse(&record).expect("it is a record");
            proptest::prop_assert_eq!((line.level, line.sequence, line.at_us), (level, sequence, at_us));
            let wanted = XidLine { bus, xid, is_switch: false, process, text: &text };
            proptest::prop_assert_eq!(XidLine::parse(line.text), Some(wanted));
        }

        #[test]
        fn arbitrary_bytes_never_harm(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..500)) {
            let text = String::from_utf8_lossy(&bytes);
            let _ = (KernelLine::parse(&text), XidLine::parse(&text), PciAddress::parse(&text));
        }
    }

    #[test]
    fn faults_of_switches_are_told_from_those_of_gpus() {
        let line = "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up";
        let read = XidLine::parse(line).unwrap();
        assert!(read.is_switch);
        assert_eq!((read.xid, read.text), (20034, "Fatal, Link 30 LTSSM Fault Up"));
    }

    #[test]
    fn what_only_looks_like_an_xid_is_none() {
        for line in [
            "",
            "NVRM: Xid",
            "NVRM: Xid (PCI:0000:3b:00)",
            "NVRM: Xid (PCI:0000:3b:00): eighty",
            "NVRM: Xid (PCI:zz:3b:00): 79",
            "someone wrote Xid (PCI:0000:3b:00): 79 into the log",
        ] {
            assert_eq!(XidLine::parse(line), None, "{line}");
        }
    }

    #[test]
    fn a_record_has_its_level_and_its_first_line() {
        let record = "3,1187,5140900,-;NVRM: Xid (PCI:0000:3b:00): 79, gone\n SUBSYSTEM=pci\n";
        let read = KernelLine::parse(record).unwrap();
        assert_eq!((read.level, read.sequence, read.at_us), (3, 1187, 5_140_900));
        assert_eq!(read.text, "NVRM: Xid (PCI:0000:3b:00): 79, gone");
        assert_eq!(KernelLine::parse(" SUBSYSTEM=pci"), None);
    }
}
