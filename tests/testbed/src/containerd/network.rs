//! A private bridge with an unused subnet.
//!
//! There is no route out and no masquerading, so no packet filter rule either: pods reach each other and the machine.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::Ipv4Addr;

use anyhow::{Context, Result, bail};
use tokio::process::Command;

use super::binary::output;

/// A thousand addresses, more than any benchmark has pods.
const PREFIX_LEN: u32 = 22;
/// Subnets are chosen from 10.128.0.0/9, which home and cloud networks rarely use.
const FIRST: u32 = 0x0a80_0000;
const SUBNETS: u32 = 1 << (PREFIX_LEN - 9);

/// See the module's documentation. The bridge is removed with the workspace that its name comes from.
#[derive(Debug, Clone)]
pub struct Network {
    name: String,
    base: u32,
}

impl Network {
    /// Makes the bridge.
    pub async fn create(name: &str) -> Result<Self> {
        let routes = fs::read_to_string("/proc/net/route").context("read /proc/net/route")?;
        let mut hasher = DefaultHasher::new();
        name.hash(&mut hasher);
        // Parallel instances read the table at the same time: different seeds keep them apart.
        let Some(base) = free_subnet(&routes, hasher.finish()) else {
            bail!("find a free subnet: all of 10.128.0.0/9 is routed");
        };
        let network = Self {
            name: name.to_owned(),
            base,
        };
        let address = format!("{}/{PREFIX_LEN}", network.host_ip());
        ip(&["link", "add", name, "type", "bridge"]).await?;
        ip(&["address", "add", &address, "dev", name]).await?;
        ip(&["link", "set", name, "up"]).await?;
        Ok(network)
    }

    /// Name of the bridge and of the CNI network.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The bridge's own address: the first of the subnet.
    pub fn host_ip(&self) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.base + 1)
    }

    /// Such as `10.130.4.0/22`.
    pub fn subnet(&self) -> String {
        format!("{}/{PREFIX_LEN}", Ipv4Addr::from_bits(self.base))
    }
}

async fn ip(args: &[&str]) -> Result<()> {
    output(Command::new("ip").args(args)).await.map(drop)
}

/// The first subnet, from a position chosen by `seed`, that overlaps no route except the default.
fn free_subnet(routes: &str, seed: u64) -> Option<u32> {
    let taken: Vec<(u32, u32)> = routes.lines().skip(1).filter_map(parse_route).collect();
    let mask = u32::MAX << (32 - PREFIX_LEN);
    (0..SUBNETS)
        .map(|step| {
            let start = u32::try_from(seed % u64::from(SUBNETS)).unwrap_or_default();
            FIRST + (((start + step) % SUBNETS) << (32 - PREFIX_LEN))
        })
        .find(|base| {
            taken
                .iter()
                .all(|(net, net_mask)| base & net_mask & mask != net & net_mask & mask)
        })
}

/// Destination and mask of a line of /proc/net/route, where addresses are hexadecimal in the machine's byte order.
fn parse_route(line: &str) -> Option<(u32, u32)> {
    let mut words = line.split_whitespace();
    let destination = u32::from_str_radix(words.nth(1)?, 16).ok()?;
    let mask = u32::from_str_radix(words.nth(5)?, 16).ok()?;
    // The default route covers everything.
    (mask != 0).then(|| {
        (
            u32::from_be_bytes(destination.to_ne_bytes()),
            u32::from_be_bytes(mask.to_ne_bytes()),
        )
    })
}
