//! Leases of the model: their holders are notified before another client's change is carried out.

use std::collections::HashMap;
use std::sync::Weak;

use crate::{Handle, Lease, Watcher};

/// The leases that a server has granted.
#[derive(Default)]
pub(super) struct Leases {
    held: HashMap<Handle, Vec<Held>>,
    /// Number of the next connection.
    next: u64,
}

/// A lease of one connection.
pub(super) struct Held {
    connection: u64,
    pub(super) lease: Lease,
    pub(super) watcher: Option<Weak<dyn Watcher>>,
}

impl Leases {
    /// A number for a connection.
    pub(super) fn connect(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// The lease of `connection` on `file`: the one it has, or `new`.
    pub(super) fn grant(
        &mut self,
        (connection, new): (u64, fn() -> Lease),
        file: &Handle,
        watcher: Option<Weak<dyn Watcher>>,
    ) -> Lease {
        let held = self.held.entry(file.clone()).or_default();
        if let Some(own) = held.iter().find(|held| held.connection == connection) {
            return own.lease.clone();
        }
        let lease = new();
        held.push(Held { connection, lease: lease.clone(), watcher });
        lease
    }

    /// Withdraws and ends a lease that a connection other than `connection` holds on one of
    /// `files`.
    pub(super) fn revoke(&mut self, connection: u64, files: &[Handle]) -> Option<(Handle, Held)> {
        files.iter().find_map(|file| {
            let held = self.held.get_mut(file)?;
            let other = held.iter().position(|held| held.connection != connection)?;
            let other = held.swap_remove(other);
            other.lease.end();
            Some((file.clone(), other))
        })
    }

    /// Takes all leases of `connection` back, and ends them.
    pub(super) fn take_back(&mut self, connection: u64) -> Vec<(Handle, Held)> {
        let mut taken = Vec::new();
        for (file, held) in &mut self.held {
            let own = held.extract_if(.., |held| held.connection == connection);
            taken.extend(own.map(|held| (file.clone(), held)));
        }
        taken.iter().for_each(|(_, held)| held.lease.end());
        taken
    }

    /// `connection` is lost.
    pub(super) fn disconnect(&mut self, connection: u64) {
        for held in self.held.values_mut() {
            held.retain(|held| {
                let lost = held.connection == connection;
                if lost {
                    held.lease.end();
                }
                !lost
            });
        }
    }
}
