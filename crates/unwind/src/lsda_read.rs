//! Reads a function's exception table.
//!
//! The format has no specification of its own. This parser follows libgcc's `parse_lsda_header`, libstdc++'s
//! `eh_personality.cc` and the Itanium C++ ABI's exception handling tables. It is strict: a table with
//! anything unclear is an error, because a clone with half an exception table would end in `std::terminate`.
//!
//! The work is linear in the table: each call site, action record and exception specification is decoded
//! once, however many others refer to it.

use crate::pointer::{Cursor, OMIT, Window, fixed_size, is_plain};
use crate::{CallSite, Error, Lsda};
use addr::{Addr, Avma, AvmaRange, ReadMemory};
use std::collections::{HashMap, HashSet};

/// The type table.
struct Types {
    /// Encoding of its entries.
    encoding: u8,
    /// Size of an entry in bytes; `None` if the encoding has no fixed size, which is a fault once an entry is
    /// used.
    size: Option<u64>,
    /// The end of the types, which lie below it, and the start of the exception specifications. Offset in the
    /// table.
    base: u64,
}

/// The bytes and types that actions refer to.
#[derive(Default)]
struct Reached {
    /// Size of the action table.
    actions: u64,
    /// Highest type index in use.
    types: u64,
    /// Size of the exception specifications.
    filters: u64,
    /// Action records already decoded, with the number of the last chain that reached them.
    records: HashMap<u64, usize>,
    /// Numbers of exception specifications already decoded.
    specs: HashSet<u64>,
}

impl Lsda {
    /// Reads the table at `at` of the function (FDE) `func`.
    ///
    /// # Errors
    /// [`Error::Unreadable`], [`Error::Lsda`], [`Error::Encoding`].
    pub fn parse(mem: &dyn ReadMemory, at: Avma, func: AvmaRange) -> Result<Lsda, Error> {
        let mut window = Window::new(mem, at);
        let mut cursor = Cursor { window: &mut window, offset: 0 };

        let pad_base = match cursor.u8()? {
            OMIT => func.start,
            // Null is a valid base: pads are then full addresses.
            encoding => cursor.pointer(encoding, func.start)?.unwrap_or_default(),
        };
        let types = match cursor.u8()? {
            OMIT => None,
            encoding => {
                let ahead = cursor.uleb()?;
                let too_large = cursor.window.fault(cursor.offset, "the type table is too far");
                let base = cursor.offset.checked_add(ahead).ok_or(too_large)?;
                Some(Types { encoding, size: fixed_size(encoding), base })
            }
        };
        let encoding = cursor.u8()?;
        if !is_plain(encoding) {
            return Err(cursor.window.bad_encoding(encoding));
        }
        let len = cursor.uleb()?;
        let too_large = cursor.window.fault(cursor.offset, "the call site table is too large");
        let action_base = cursor.offset.checked_add(len).ok_or(too_large)?;
        // The whole table must be readable before any of it is used.
        let table_start = cursor.offset;
        cursor.window.get(table_start, len)?;

        let mut call_sites: Vec<CallSite> = Vec::new();
        while cursor.offset < action_base {
            let site = call_site(&mut cursor, encoding, func, pad_base, call_sites.last())?;
            call_sites.push(site);
        }
        if cursor.offset != action_base {
            return Err(cursor.window.fault(cursor.offset, "the last call site leaves its table"));
        }

        let tables = Tables { actions: action_base, types: types.as_ref() };
        let mut reached = Reached::default();
        for (chain, site) in call_sites.iter().enumerate() {
            reached.follow(&mut window, tables, chain, site.action)?;
        }
        reached.collect(&mut window, tables, func.start, call_sites)
    }

    /// Returns the call site for an exception that passes the instruction at `pc` (an address inside the
    /// call, not after it). `None`: `std::terminate`.
    #[must_use]
    pub fn lookup(&self, pc: Avma) -> Option<&CallSite> {
        let after = self.call_sites.partition_point(|s| s.range.start <= pc);
        // An empty call site may share its start with the relevant one.
        self.call_sites
            .get(..after)?
            .iter()
            .rev()
            .find(|s| !s.range.is_empty())
            .filter(|s| s.range.contains(pc))
    }
}

fn call_site(
    cursor: &mut Cursor<'_, '_>,
    encoding: u8,
    func: AvmaRange,
    pad_base: Avma,
    last: Option<&CallSite>,
) -> Result<CallSite, Error> {
    let at = cursor.offset;
    let start = cursor.value(encoding)?;
    let len = cursor.value(encoding)?;
    let pad = cursor.value(encoding)?;
    let action = cursor.uleb()?;

    let from = func.start.raw().checked_add(start);
    let range = from.and_then(|from| Some(AvmaRange::new(Avma(from), Avma(from.checked_add(len)?))));
    let Some(range) = range.filter(|r| func.covers(r)) else {
        return Err(cursor.window.fault(at, "a call site leaves the function"));
    };
    // Personalities stop searching at the first call site past the address.
    if last.is_some_and(|l| range.start < l.range.end) {
        return Err(cursor.window.fault(at, "the call sites are not in order"));
    }
    Ok(CallSite { range, landing_pad: (pad != 0).then(|| pad_base.add(pad)), action })
}

/// The tables behind the call sites.
#[derive(Clone, Copy)]
struct Tables<'a> {
    /// Where the actions begin.
    actions: u64,
    types: Option<&'a Types>,
}

impl Reached {
    /// Follows the chain of action records that begins at `action` (1 + offset; 0: none).
    fn follow(
        &mut self,
        window: &mut Window<'_>,
        tables: Tables<'_>,
        chain: usize,
        action: u64,
    ) -> Result<(), Error> {
        let Tables { actions: action_base, types } = tables;
        let Some(mut record) = action.checked_sub(1) else { return Ok(()) };
        loop {
            match self.records.insert(record, chain) {
                None => {}
                Some(first) if first == chain => {
                    return Err(window.fault(action_base.saturating_add(record), "an action chain is a ring"));
                }
                // The rest of the chain has been decoded.
                Some(_) => return Ok(()),
            }
            let far = window.fault(action_base, "an action is too far");
            let offset = action_base.checked_add(record).ok_or(far)?;
            let mut cursor = Cursor { window, offset };
            let filter = cursor.sleb()?;
            // The distance to the next record is relative to its own field.
            let from = record + (cursor.offset - offset);
            let next = cursor.sleb()?;
            self.actions = self.actions.max(cursor.offset - action_base);
            match (u64::try_from(filter), types) {
                (Ok(0), _) => {}
                (Ok(index), Some(_)) => self.types = self.types.max(index),
                (Err(_), Some(types)) => self.specification(window, types, filter.unsigned_abs() - 1)?,
                (_, None) => return Err(window.fault(offset, "a filter without a type table")),
            }
            if next == 0 {
                return Ok(());
            }
            let before = window.fault(offset, "an action chain leaves the table");
            record = from.checked_add_signed(next).ok_or(before)?;
        }
    }

    /// Decodes the exception specification `at` bytes from the type base: type indices up to a zero.
    fn specification(&mut self, window: &mut Window<'_>, types: &Types, mut at: u64) -> Result<(), Error> {
        while self.specs.insert(at) {
            let far = window.fault(types.base, "an exception specification is too far");
            let offset = types.base.checked_add(at).ok_or(far)?;
            let mut cursor = Cursor { window: &mut *window, offset };
            let index = cursor.uleb()?;
            at = cursor.offset - types.base;
            self.filters = self.filters.max(at);
            if index == 0 {
                break;
            }
            self.types = self.types.max(index);
        }
        Ok(())
    }

    /// Copies everything that was reached out of the table.
    fn collect(
        self,
        window: &mut Window<'_>,
        tables: Tables<'_>,
        func: Avma,
        call_sites: Vec<CallSite>,
    ) -> Result<Lsda, Error> {
        let Tables { actions: action_base, types } = tables;
        let actions = window.get(action_base, self.actions)?.to_vec();
        let mut lsda = Lsda { call_sites, actions, types: Vec::new(), filters: Vec::new() };
        let Some(types) = types else { return Ok(lsda) };
        if self.types > 0 {
            let size = types.size.ok_or_else(|| window.bad_encoding(types.encoding))?;
            let room = types.base.checked_sub(action_base).and_then(|r| r.checked_sub(self.actions));
            if room.is_none_or(|room| room / size < self.types) {
                return Err(window.fault(types.base, "the types run into the actions"));
            }
            for index in 1..=self.types {
                let mut cursor = Cursor { window: &mut *window, offset: types.base - index * size };
                lsda.types.push(cursor.pointer(types.encoding, func)?);
            }
        }
        lsda.filters = window.get(types.base, self.filters)?.to_vec();
        Ok(lsda)
    }
}
