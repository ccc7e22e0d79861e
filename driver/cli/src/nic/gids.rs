//! Which of a NIC's GIDs a connection uses.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use ferroce::gid::{Gid, GidEntry, RoceVersion};

/// What the user wants of the GID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GidChoice {
    /// That entry of the table.
    Index(u16),
    /// The first of a kind.
    Kind(RoceVersion, Scope),
}

/// Kinds of addresses. Packets go between addresses of the same kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// IPv4.
    Ipv4,
    /// IPv6, but not link-local.
    Ipv6,
    /// IPv6 link-local.
    LinkLocal,
}

impl Scope {
    fn of(gid: Gid) -> Scope {
        match gid.to_ip() {
            IpAddr::V4(_) => Scope::Ipv4,
            IpAddr::V6(ip) if ip.is_unicast_link_local() => Scope::LinkLocal,
            IpAddr::V6(_) => Scope::Ipv6,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Scope::Ipv4 => "IPv4",
            Scope::Ipv6 => "IPv6",
            Scope::LinkLocal => "IPv6 link-local",
        }
    }
}

impl GidChoice {
    /// Those that have a name.
    const NAMED: [(&str, GidChoice); 4] = [
        ("roce-v2-ipv4", GidChoice::Kind(RoceVersion::V2, Scope::Ipv4)),
        ("roce-v2-ipv6", GidChoice::Kind(RoceVersion::V2, Scope::Ipv6)),
        (
            "roce-v2-link-local",
            GidChoice::Kind(RoceVersion::V2, Scope::LinkLocal),
        ),
        ("roce-v1", GidChoice::Kind(RoceVersion::V1, Scope::LinkLocal)),
    ];

    /// Whether an entry that was found by its kind is of the kind that is wanted.
    pub fn admits(self, entry: &GidEntry) -> bool {
        match self {
            GidChoice::Index(_) => true,
            GidChoice::Kind(version, scope) => (version, scope) == (entry.version, Scope::of(entry.gid)),
        }
    }
}

impl FromStr for GidChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<GidChoice, String> {
        if let Some((_, choice)) = GidChoice::NAMED.iter().find(|(name, _)| *name == text) {
            return Ok(*choice);
        }
        text.parse().map(GidChoice::Index).map_err(|_| {
            let names = GidChoice::NAMED.map(|(name, _)| name).join(", ");
            format!("it must be one of {names}, or an index of the GID table")
        })
    }
}

impl fmt::Display for GidChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self, GidChoice::NAMED.iter().find(|(_, choice)| choice == self)) {
            (_, Some((name, _))) => f.write_str(name),
            (GidChoice::Index(index), None) => index.fmt(f),
            // Those without a name are not to be had.
            (GidChoice::Kind(version, scope), None) => write!(f, "{version}, {}", scope.name()),
        }
    }
}

/// A GID of this side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalGid {
    /// Its place in the table.
    pub index: u16,
    /// What it is.
    pub entry: GidEntry,
}

/// Chooses among the entries of a table where the way does not decide, as the peer is not known or its next hop is told by
/// the user; says why there is none.
///
/// By default RoCE v2, since nothing else can be routed and Linux's Soft-RoCE knows nothing else; of the kind of the
/// peer's GID; else in the order in which users expect to be reached: IPv4, IPv6, link-local.
pub fn choose(
    entries: &[(u16, GidEntry)],
    choice: Option<GidChoice>,
    peer: Option<Gid>,
) -> Result<LocalGid, String> {
    let local = |(index, entry): &(u16, GidEntry)| LocalGid {
        index: *index,
        entry: *entry,
    };
    let first = |version: RoceVersion, scope: Scope| {
        let fits = |(_, entry): &&(u16, GidEntry)| GidChoice::Kind(version, scope).admits(entry);
        entries.iter().find(fits).map(local)
    };
    match (choice, peer) {
        (Some(GidChoice::Index(index)), _) => {
            let found = entries.iter().find(|(i, _)| *i == index).map(local);
            found.ok_or_else(|| {
                format!(
                    "the GID table has nothing at index {index}; it has {}",
                    list(entries)
                )
            })
        }
        (Some(GidChoice::Kind(version, scope)), _) => first(version, scope).ok_or_else(|| {
            format!(
                "no {} GID of {version}; the table has {}{}",
                scope.name(),
                list(entries),
                hint(scope)
            )
        }),
        (None, Some(peer)) => {
            let scope = Scope::of(peer);
            first(RoceVersion::V2, scope).ok_or_else(|| {
                format!(
                    "the peer's GID is {peer}, and there is no {} GID of RoCE v2 to reach it from; the table has {}{}",
                    scope.name(),
                    list(entries),
                    hint(scope)
                )
            })
        }
        (None, None) => [Scope::Ipv4, Scope::Ipv6, Scope::LinkLocal]
            .into_iter()
            .find_map(|scope| first(RoceVersion::V2, scope))
            .ok_or_else(|| format!("no GID of RoCE v2; the table has {}", list(entries))),
    }
}

fn hint(scope: Scope) -> &'static str {
    match scope {
        Scope::Ipv4 | Scope::Ipv6 => "; give the NIC an address with --address",
        Scope::LinkLocal => "",
    }
}

fn list(entries: &[(u16, GidEntry)]) -> String {
    if entries.is_empty() {
        return "no entry".to_string();
    }
    let names: Vec<_> = entries
        .iter()
        .map(|(index, entry)| format!("{index}: {} ({})", entry.gid, entry.version))
        .collect();
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferroce::port::MacAddress;

    fn entry(ip: &str, version: RoceVersion) -> GidEntry {
        GidEntry {
            gid: Gid::from_ip(ip.parse().unwrap()),
            version,
            mac: MacAddress([2, 0, 0, 0, 0, 1]),
            vlan: None,
        }
    }

    /// As on a NIC with two addresses, and a hole.
    fn table() -> Vec<(u16, GidEntry)> {
        use RoceVersion::{V1, V2};
        vec![
            (0, entry("fe80::1", V1)),
            (1, entry("fe80::1", V2)),
            (2, entry("10.0.0.1", V1)),
            (3, entry("10.0.0.1", V2)),
            (7, entry("10.9.0.1", V2)),
        ]
    }

    fn gid(ip: &str) -> Option<Gid> {
        Some(Gid::from_ip(ip.parse().unwrap()))
    }

    #[test]
    fn g01_the_automatic_choice_is_the_routable_ipv4() {
        let chosen = |peer| choose(&table(), None, peer).map(|l| l.index);
        assert_eq!(chosen(None), Ok(3));
        assert_eq!(chosen(gid("10.0.0.9")), Ok(3));
        assert_eq!(chosen(gid("fe80::9")), Ok(1));
        let error = chosen(gid("fd00::9")).unwrap_err();
        assert!(
            error.contains("fd00::9") && error.contains("--address"),
            "{error}"
        );
    }

    #[test]
    fn g03_without_a_usable_gid_the_reason_is_named() {
        let error = choose(&[], None, None).unwrap_err();
        assert_eq!(error, "no GID of RoCE v2; the table has no entry");
        let v1 = [(0, entry("fe80::1", RoceVersion::V1))];
        let error = choose(&v1, None, None).unwrap_err();
        assert_eq!(error, "no GID of RoCE v2; the table has 0: fe80::1 (RoCE v1)");
    }

    #[test]
    fn g04_indices_are_those_of_the_table() {
        let chosen = |text: &str| choose(&table(), Some(text.parse().unwrap()), None).map(|l| l.index);
        assert_eq!(chosen("7"), Ok(7));
        assert_eq!(chosen("roce-v1"), Ok(0));
        assert_eq!(chosen("roce-v2-link-local"), Ok(1));
        assert_eq!(chosen("roce-v2-ipv4"), Ok(3));
        assert!(chosen("4").unwrap_err().contains("nothing at index 4"));
        assert!(chosen("roce-v2-ipv6").unwrap_err().contains("no IPv6 GID"));
        for text in [
            "roce-v2-ipv4",
            "roce-v2-ipv6",
            "roce-v2-link-local",
            "roce-v1",
            "0",
            "255",
        ] {
            assert_eq!(text.parse::<GidChoice>().unwrap().to_string(), text);
        }
        let error = "v2".parse::<GidChoice>().unwrap_err();
        assert!(
            error.contains("roce-v2-ipv6") && error.contains("index"),
            "{error}"
        );
    }
}
