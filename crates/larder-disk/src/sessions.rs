//! The sessions of a disk: bounded, and made only for a client that has proved its right to them.
//!
//! A client's session is *unproven* until its first good request, because its handshake may have
//! been replayed by an eavesdropper. Unproven sessions are few and displace only each other, and
//! the same handshake gets the same answer, so replayed handshakes keep no client out. One
//! capability gets only a few sessions.
//!
//! A session keeps the keys of the capabilities that its requests show: three HMACs
//! and two key schedules take longer than the seals on 4 KiB. They are kept only for requests whose
//! seal was right, and found only by the very capability for which they were derived. Requests are
//! checked each time nevertheless.
//!
//! Invariants: never more sessions than the limits say, nor keys; when there is no more room, the
//! session that was used longest ago goes, and its client repeats the handshake; the metadata
//! server's sessions are separate from the clients'; a session that is over has no keys.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use larder_wire::capability::{Capability, CapabilityId, GroupId, KeyEpoch};
use larder_wire::disk::words::{HandshakeDone, Refusal, SessionId};
use larder_wire::seal::{KEY_BYTES, Kept, RequestKeys, SessionKey};

use crate::window::Window;

/// Most sessions of clients at a time, unless a disk is told otherwise. Each takes less than 1 KiB.
pub const SESSIONS_MAX: usize = 4096;
/// Most of them that were never used.
pub const UNPROVEN_MAX: usize = 256;
/// Most that are made under one capability.
pub const OPENED_MAX: usize = 16;
/// Most sessions of the metadata server and of observers.
pub const CONTROLS_MAX: usize = 8;
/// Most pairs of a session and a capability whose keys are kept: about 3 MiB.
pub const KEYS_MAX: usize = 1024;

/// Whose a session is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A client's, made under this capability. Each of its requests presents a capability of its
    /// own.
    Client(GroupId, CapabilityId),
    /// The metadata server's, of this owner of the volume.
    Control(u64),
    /// The session of a holder of the disk's key that only observes.
    Observer,
}

/// A session.
#[derive(Debug)]
pub struct Session {
    kind: Kind,
    key: SessionKey,
    /// The keys of its requests, if they show no capability.
    orders: Option<Arc<RequestKeys>>,
    window: Mutex<Window>,
}

/// A session's keys: its own, and those of its requests if they show no capability.
#[derive(Debug)]
pub struct SessionKeys {
    /// Common to the disk and the client.
    pub key: SessionKey,
    /// Of the metadata server's requests, and of observers'.
    pub orders: Option<Arc<RequestKeys>>,
}

impl Session {
    /// Whose it is.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The key that it has in common with its client.
    pub fn key(&self) -> &SessionKey {
        &self.key
    }

    /// The keys of its requests, if they show no capability.
    pub fn orders(&self) -> Option<&Arc<RequestKeys>> {
        self.orders.as_ref()
    }

    /// Takes the sequence number of a request whose seal is right.
    ///
    /// # Errors
    /// [`Refusal::Replayed`], [`Refusal::Exhausted`]
    pub fn take(&self, sequence: u64) -> Result<(), Refusal> {
        self.window.lock().unwrap_or_else(PoisonError::into_inner).take(sequence)
    }
}

/// The table's record of a session.
#[derive(Debug)]
struct Entry {
    session: Arc<Session>,
    /// The client's nonce of its handshake.
    nonce: [u8; KEY_BYTES],
    /// The answer to the handshake.
    answer: HandshakeDone,
    is_proven: bool,
    /// When it was used last, in uses of all.
    used: u64,
}

/// All sessions.
#[derive(Debug)]
pub struct Sessions {
    clients_max: usize,
    table: Mutex<Table>,
}

#[derive(Debug)]
struct Table {
    next: u64,
    uses: u64,
    entries: HashMap<SessionId, Entry>,
    by_nonce: HashMap<[u8; KEY_BYTES], SessionId>,
    keys: Kept<KeysName, (Capability, Arc<RequestKeys>)>,
}

/// Which keys are meant; the capability in full decides.
type KeysName = (GroupId, CapabilityId, SessionId);

fn keys_name(session: SessionId, capability: &Capability) -> KeysName {
    (capability.group, capability.id, session)
}

impl Sessions {
    /// No sessions, and room for at most `clients_max` of clients. Their numbers begin at `first`,
    /// which differs from boot to boot: so the number of an earlier boot's session is not that of a
    /// new one.
    pub fn new(clients_max: usize, first: u64) -> Sessions {
        let (entries, by_nonce) = (HashMap::new(), HashMap::new());
        let next = first.max(1);
        let keys = Kept::new(KEYS_MAX);
        let table = Mutex::new(Table { next, uses: 0, entries, by_nonce, keys });
        Sessions { clients_max, table }
    }

    /// Begins a session for a handshake whose seal is right, and returns its keys, and the answer,
    /// which `welcome` makes from its number. A repeated handshake, whose session was never used,
    /// gets the same answer again.
    ///
    /// # Errors
    /// [`Refusal::Replayed`] if it is repeated and its session was used.
    pub fn begin(
        &self,
        kind: Kind,
        nonce: [u8; KEY_BYTES],
        welcome: impl FnOnce(SessionId) -> (SessionKeys, HandshakeDone),
    ) -> Result<HandshakeDone, Refusal> {
        let mut table = self.table();
        if let Some(entry) = table.by_nonce.get(&nonce).and_then(|number| table.entries.get(number))
        {
            let is_again = entry.session.kind == kind && !entry.is_proven;
            return if is_again { Ok(entry.answer) } else { Err(Refusal::Replayed) };
        }
        table.make_room(kind, self.clients_max);
        let number = SessionId(table.next);
        table.next += 1;
        let (SessionKeys { key, orders }, answer) = welcome(number);
        let session = Arc::new(Session { kind, key, orders, window: Mutex::default() });
        let used = table.tick();
        let entry = Entry { session, nonce, answer, is_proven: false, used };
        table.entries.insert(number, entry);
        table.by_nonce.insert(nonce, number);
        Ok(answer)
    }

    /// The session with this number. This does not count as a use: the caller has proved nothing
    /// yet.
    ///
    /// # Errors
    /// [`Refusal::UnknownSession`]
    pub fn get(&self, number: SessionId) -> Result<Arc<Session>, Refusal> {
        let table = self.table();
        let entry = table.entries.get(&number).ok_or(Refusal::UnknownSession)?;
        Ok(Arc::clone(&entry.session))
    }

    /// The session with this number, and the keys of its requests that show exactly this
    /// capability, if they are kept. Nor does this count as a use of the session.
    ///
    /// # Errors
    /// [`Refusal::UnknownSession`]
    pub fn find(
        &self,
        number: SessionId,
        capability: &Capability,
    ) -> Result<(Arc<Session>, Option<Arc<RequestKeys>>), Refusal> {
        let mut table = self.table();
        let entry = table.entries.get(&number).ok_or(Refusal::UnknownSession)?;
        let session = Arc::clone(&entry.session);
        let kept = table.keys.get(&keys_name(number, capability));
        let keys = kept.filter(|(shown, _)| shown == capability).map(|(_, keys)| Arc::clone(keys));
        Ok((session, keys))
    }

    /// A session was used, by a request whose seal is right.
    pub fn used(&self, number: SessionId) {
        self.table().used(number);
    }

    /// A session was used, by a request that showed this capability for the first time and whose
    /// seal is right under these keys. They are kept, if the session is not over.
    pub fn used_first(&self, number: SessionId, capability: &Capability, keys: &Arc<RequestKeys>) {
        let mut table = self.table();
        if table.used(number) {
            let kept = (capability.clone(), Arc::clone(keys));
            table.keys.keep(keys_name(number, capability), kept);
        }
    }

    /// Forgets the keys of a capability in all sessions.
    pub fn forget(&self, group: GroupId, id: CapabilityId) {
        let of_all = (group, id, SessionId(0))..=(group, id, SessionId(u64::MAX));
        self.table().keys.forget(of_all);
    }

    /// The same of a group of capabilities.
    pub fn forget_group(&self, group: GroupId) {
        let last = (group, CapabilityId(u32::MAX), SessionId(u64::MAX));
        self.table().keys.forget((group, CapabilityId(0), SessionId(0))..=last);
    }

    /// The same of the capabilities that were not made with a key for which `is_taken` holds.
    pub fn forget_unless(&self, is_taken: impl Fn(KeyEpoch) -> bool) {
        self.table().keys.forget_if(|_, (capability, _)| !is_taken(capability.key));
    }

    /// How many keys of capabilities are kept.
    pub fn keys(&self) -> usize {
        self.table().keys.len()
    }

    /// Ends a session. Requests of it that were admitted continue.
    pub fn end(&self, number: SessionId) {
        self.table().remove(number);
    }

    /// Ends the sessions of earlier owners of the volume.
    pub fn end_owners_before(&self, owner: u64) {
        let is_older = |kind| matches!(kind, Kind::Control(older) if older < owner);
        self.table().remove_if(|entry| is_older(entry.session.kind));
    }

    /// How many there are, of clients and of the metadata server.
    pub fn count(&self) -> usize {
        self.table().entries.len()
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    fn tick(&mut self) -> u64 {
        self.uses += 1;
        self.uses
    }

    /// A session was used; returns whether there is such a session.
    fn used(&mut self, number: SessionId) -> bool {
        let used = self.tick();
        let entry = self.entries.get_mut(&number);
        let is_there = entry.is_some();
        if let Some(entry) = entry {
            entry.used = used;
            entry.is_proven = true;
        }
        is_there
    }

    /// Makes room for one more session of `kind`.
    fn make_room(&mut self, kind: Kind, clients_max: usize) {
        let is_client = |entry: &Entry| matches!(entry.session.kind, Kind::Client(..));
        if !matches!(kind, Kind::Client(..)) {
            return self.keep_below(CONTROLS_MAX, |entry| !is_client(entry));
        }
        self.keep_below(OPENED_MAX, |entry| entry.session.kind == kind);
        self.keep_below(UNPROVEN_MAX.min(clients_max), |entry| {
            is_client(entry) && !entry.is_proven
        });
        self.keep_below(clients_max, is_client);
    }

    /// Ends the least recently used session among those for which `counts` holds, if there are
    /// `limit` of them.
    fn keep_below(&mut self, limit: usize, counts: impl Fn(&Entry) -> bool) {
        let counted = || self.entries.iter().filter(|(_, entry)| counts(entry));
        if counted().count() < limit {
            return;
        }
        let oldest = counted().min_by_key(|(_, entry)| entry.used).map(|(number, _)| *number);
        if let Some(oldest) = oldest {
            self.remove(oldest);
        }
    }

    fn remove(&mut self, number: SessionId) {
        if let Some(entry) = self.entries.remove(&number) {
            self.by_nonce.remove(&entry.nonce);
            // An unproven session has none: displacing those costs an attacker's victim nothing.
            if entry.is_proven {
                self.keys.forget_if(|(_, _, of), _| *of == number);
            }
        }
    }

    fn remove_if(&mut self, is_over: impl Fn(&Entry) -> bool) {
        let over = self.entries.iter().filter(|(_, entry)| is_over(entry));
        let over: Vec<SessionId> = over.map(|(number, _)| *number).collect();
        over.into_iter().for_each(|number| self.remove(number));
    }
}

#[cfg(test)]
mod tests {
    use larder_wire::capability::{BootEpoch, DiskId, Extent, Extents, Mode, VolumeId};
    use larder_wire::disk::words::Welcome;
    use larder_wire::seal::{Secret, Setup};

    use super::*;

    fn client(id: u32) -> Kind {
        Kind::Client(GroupId(1), CapabilityId(id))
    }

    fn nonce(number: u64) -> [u8; KEY_BYTES] {
        let mut nonce = [0; KEY_BYTES];
        nonce[..8].copy_from_slice(&number.to_le_bytes());
        nonce
    }

    fn begin(sessions: &Sessions, kind: Kind, number: u64) -> Result<SessionId, Refusal> {
        let done = sessions.begin(kind, nonce(number), |session| {
            let boot = BootEpoch(1);
            let welcome = Welcome { session, boot, setup: Setup::Secure, nonce: [0; KEY_BYTES] };
            let keys = SessionKeys { key: SessionKey::new([0; KEY_BYTES]), orders: None };
            (keys, HandshakeDone { welcome, mac: [0; KEY_BYTES] })
        });
        done.map(|done| done.welcome.session)
    }

    #[test]
    fn a_handshake_that_comes_again_gets_the_same_answer_until_its_session_is_used() {
        let sessions = Sessions::new(SESSIONS_MAX, 100);
        let first = begin(&sessions, client(1), 1).unwrap();
        assert_eq!(begin(&sessions, client(1), 1), Ok(first));
        assert_eq!(begin(&sessions, client(2), 1), Err(Refusal::Replayed));
        assert_eq!(sessions.count(), 1);
        sessions.used(first);
        assert_eq!(begin(&sessions, client(1), 1), Err(Refusal::Replayed));
        assert_ne!(begin(&sessions, client(1), 2).unwrap(), first);
    }

    /// Handshakes that no request follows displace each other, and no session that is used.
    #[test]
    fn a_flood_of_handshakes_displaces_no_working_client() {
        let sessions = Sessions::new(512, 1);
        let working: Vec<SessionId> = (0..200)
            .map(|at| begin(&sessions, client(at), u64::from(at)).unwrap())
            .inspect(|session| sessions.used(*session))
            .collect();
        for at in 0..10_000_u32 {
            begin(&sessions, client(1000 + at % 4000), u64::from(1000 + at)).unwrap();
            assert!(sessions.count() <= 200 + UNPROVEN_MAX);
        }
        assert!(working.iter().all(|session| sessions.get(*session).is_ok()));
    }

    #[test]
    fn one_capability_makes_a_few_sessions() {
        let sessions = Sessions::new(SESSIONS_MAX, 1);
        let made: Vec<SessionId> = (0..OPENED_MAX as u64 + 1)
            .map(|number| begin(&sessions, client(1), number).unwrap())
            .inspect(|session| sessions.used(*session))
            .collect();
        assert_eq!(sessions.count(), OPENED_MAX);
        assert_eq!(sessions.get(made[0]).unwrap_err(), Refusal::UnknownSession);
        assert!(made[1..].iter().all(|session| sessions.get(*session).is_ok()));
    }

    #[test]
    fn where_there_is_no_room_the_one_used_longest_ago_goes() {
        let sessions = Sessions::new(3, 1);
        let made: Vec<SessionId> = (0..3)
            .map(|at| begin(&sessions, client(at), u64::from(at)).unwrap())
            .inspect(|session| sessions.used(*session))
            .collect();
        sessions.used(made[0]);
        let control = begin(&sessions, Kind::Control(1), 50).unwrap();
        begin(&sessions, client(9), 9).unwrap();
        assert_eq!(sessions.get(made[1]).unwrap_err(), Refusal::UnknownSession);
        assert!([made[0], made[2], control].iter().all(|one| sessions.get(*one).is_ok()));
    }

    #[test]
    fn sessions_of_earlier_owners_end() {
        let sessions = Sessions::new(3, 1);
        let old = begin(&sessions, Kind::Control(1), 1).unwrap();
        let new = begin(&sessions, Kind::Control(2), 2).unwrap();
        let client = begin(&sessions, client(1), 3).unwrap();
        sessions.end_owners_before(2);
        assert!(sessions.get(old).is_err());
        assert!(sessions.get(new).is_ok() && sessions.get(client).is_ok());
        for number in 10..10 + 2 * CONTROLS_MAX as u64 {
            begin(&sessions, Kind::Control(2), number).unwrap();
        }
        assert_eq!(sessions.count(), 1 + CONTROLS_MAX);
        sessions.end(client);
        assert_eq!(sessions.count(), CONTROLS_MAX);
    }

    fn capability(group: u64, id: u32) -> Capability {
        Capability {
            volume: VolumeId([7; 16]),
            disk: DiskId(1),
            boot: BootEpoch(1),
            key: KeyEpoch(1),
            group: GroupId(group),
            id: CapabilityId(id),
            mode: Mode::Read,
            expiry_ms: 1000,
            extents: Extents::new(vec![Extent::new(0, 1).unwrap()]).unwrap(),
        }
    }

    fn keys() -> Arc<RequestKeys> {
        let secret = Secret::new([1; 32]);
        Arc::new(secret.session_key(&[2; 32], &[3; 32]).request_keys(&secret))
    }

    fn has(sessions: &Sessions, session: SessionId, capability: &Capability) -> bool {
        sessions.find(session, capability).is_ok_and(|(_, keys)| keys.is_some())
    }

    #[test]
    fn keys_are_found_by_the_very_capability_and_session() {
        let sessions = Sessions::new(SESSIONS_MAX, 1);
        let one = begin(&sessions, client(1), 1).unwrap();
        let two = begin(&sessions, client(2), 2).unwrap();
        sessions.used_first(one, &capability(1, 1), &keys());
        assert!(has(&sessions, one, &capability(1, 1)));
        assert!(!has(&sessions, two, &capability(1, 1)));
        assert!(!has(&sessions, one, &Capability { mode: Mode::ReadWrite, ..capability(1, 1) }));
        assert!(!has(&sessions, one, &Capability { expiry_ms: 2000, ..capability(1, 1) }));
    }

    #[test]
    fn no_more_keys_are_kept_than_may_be_and_those_in_use_stay() {
        let sessions = Sessions::new(SESSIONS_MAX, 1);
        let (one, keys) = (begin(&sessions, client(1), 1).unwrap(), keys());
        sessions.used_first(one, &capability(1, 0), &keys);
        for id in 1..3 * KEYS_MAX as u32 {
            assert!(has(&sessions, one, &capability(1, 0)));
            (0..2).for_each(|_| sessions.used_first(one, &capability(1, id), &keys));
            assert!(sessions.keys() <= KEYS_MAX);
        }
        assert_eq!(sessions.keys(), KEYS_MAX);
    }

    /// Every way in which a capability or a session ends takes its keys, and no others.
    #[test]
    fn keys_end_with_the_session_the_capability_the_group_and_the_epoch() {
        type End = fn(&Sessions, SessionId);
        let ends: [(End, [bool; 5]); 6] = [
            (|_, _| {}, [true; 5]),
            (|all, one| all.end(one), [false, false, false, true, false]),
            (|all, _| all.forget(GroupId(1), CapabilityId(1)), [false, true, true, false, true]),
            (|all, _| all.forget_group(GroupId(1)), [false, false, true, false, true]),
            (|all, _| all.forget_unless(|key| key == KeyEpoch(1)), [true, true, true, true, false]),
            (|all, _| all.forget_unless(|_| false), [false; 5]),
        ];
        for (at, (end, expected)) in ends.into_iter().enumerate() {
            let sessions = Sessions::new(SESSIONS_MAX, 1);
            let one = begin(&sessions, client(1), 1).unwrap();
            let two = begin(&sessions, client(2), 2).unwrap();
            let newer = Capability { key: KeyEpoch(2), ..capability(3, 1) };
            let kept = [
                (one, capability(1, 1)),
                (one, capability(1, 2)),
                (one, capability(2, 1)),
                (two, capability(1, 1)),
                (one, newer),
            ];
            kept.iter().for_each(|(session, shown)| sessions.used_first(*session, shown, &keys()));
            end(&sessions, one);
            let found = kept.each_ref().map(|(session, shown)| has(&sessions, *session, shown));
            assert_eq!(found, expected, "way {at}");
            assert_eq!(sessions.keys(), expected.iter().filter(|is_kept| **is_kept).count());
        }
    }

    #[test]
    fn a_session_that_is_over_gets_no_keys() {
        let sessions = Sessions::new(SESSIONS_MAX, 1);
        let one = begin(&sessions, client(1), 1).unwrap();
        sessions.end(one);
        sessions.used_first(one, &capability(1, 1), &keys());
        assert_eq!(sessions.keys(), 0);
    }
}
