//! What the members of a group show each other before they make a communicator.

use super::library::{UniqueId, Version};

/// A member's version of NCCL, if it has any, and what all could meet by.
#[derive(Clone, Copy)]
pub(super) struct HandshakeInfo {
    version: Option<Version>,
    id: UniqueId,
}

impl HandshakeInfo {
    pub(super) const BYTES: usize = 4 + UniqueId::BYTES;

    pub(super) fn new<E>(version: Result<Version, E>, id: UniqueId) -> Self {
        Self { version: version.ok(), id }
    }

    pub(super) fn bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..4].copy_from_slice(&self.version.map_or(0, |version| version.0).to_le_bytes());
        bytes[4..].copy_from_slice(&self.id.0);
        bytes
    }

    /// Panics when there are fewer bytes than handshake info has.
    pub(super) fn read(bytes: &[u8]) -> Self {
        let (version, id) = bytes.split_first_chunk::<4>().expect("handshake info begins with a version");
        let version = u32::from_le_bytes(*version);
        let id = UniqueId(*id.first_chunk().expect("handshake info ends with an identity"));
        Self { version: (version > 0).then_some(Version(version)), id }
    }
}

/// What members meet by: the first one's identity, where all have the same NCCL. Else the rank that differs, and how.
pub(super) fn agree(infos: &[HandshakeInfo], ranks: &[u32]) -> Result<UniqueId, (u32, String)> {
    let without = infos.iter().zip(ranks).find(|(info, _)| info.version.is_none());
    if let Some((_, rank)) = without {
        return Err((*rank, "it finds no NCCL that can be used, which GPUs exchange elements by".to_owned()));
    }
    let first = infos[0];
    match infos.iter().zip(ranks).find(|(info, _)| info.version != first.version) {
        Some((info, rank)) => {
            let version =
                |info: &HandshakeInfo| info.version.map_or(String::new(), |version| version.to_string());
            let why = format!("it has NCCL {} and rank {} has {}", version(info), ranks[0], version(&first));
            Err((*rank, why))
        }
        None => Ok(first.id),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(version: Option<u32>, first: u8) -> HandshakeInfo {
        let mut id = UniqueId([0; UniqueId::BYTES]);
        id.0[0] = first;
        HandshakeInfo::read(&HandshakeInfo::new(version.map(Version).ok_or(()), id).bytes())
    }

    #[test]
    fn members_meet_where_all_have_the_same_nccl() {
        let agreed = agree(&[info(Some(22_803), 7), info(Some(22_803), 0)], &[4, 9]);
        assert_eq!(agreed.map(|id| id.0[0]), Ok(7));
        let (rank, why) = agree(&[info(Some(22_803), 7), info(Some(21_805), 0)], &[4, 9]).unwrap_err();
        assert_eq!((rank, why.as_str()), (9, "it has NCCL 2.18.5 and rank 4 has 2.28.3"));
        let (rank, _) = agree(&[info(None, 0), info(Some(22_803), 0)], &[4, 9]).unwrap_err();
        assert_eq!(rank, 4);
    }
}
