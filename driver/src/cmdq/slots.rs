//! Which slots of the command queue are free, in use, or lost to a command that was never answered.
//!
//! The last slot is MANAGE_PAGES' own: firmware may be waiting for pages in order to finish the commands in all other
//! slots, so that it must never queue behind them. Source: Linux mlx5 reserves the same slot.

/// Which slots a command may take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SlotClass {
    /// All but the last.
    General,
    /// The last one.
    Pages,
}

/// The bookkeeping of up to 32 slots. Bit n of a mask stands for slot n.
#[derive(Debug)]
pub(crate) struct SlotTable {
    pages: u32,
    general: u32,
    busy: u32,
    leaked: u32,
    next_token: u8,
}

impl SlotTable {
    /// A table of `1 << log_size` slots.
    ///
    /// `log_size` is 1..=5, which bring-up has checked; others are clamped.
    pub(crate) fn new(log_size: u8) -> Self {
        let slots = 1u32 << log_size.clamp(1, 5);
        let pages = 1 << (slots - 1);
        Self {
            pages,
            general: pages - 1,
            busy: 0,
            leaked: 0,
            next_token: 1,
        }
    }

    /// Takes a free slot and a token that is not 0; `None` when all are in use.
    pub(crate) fn take(&mut self, class: SlotClass) -> Option<(u8, u8)> {
        let candidates = match class {
            SlotClass::General => self.general,
            SlotClass::Pages => self.pages,
        } & !(self.busy | self.leaked);
        if candidates == 0 {
            return None;
        }
        let slot = candidates.trailing_zeros() as u8;
        self.busy |= 1 << slot;
        let token = self.next_token;
        self.next_token = if token == u8::MAX { 1 } else { token + 1 };
        Some((slot, token))
    }

    /// A command in `slot` was answered.
    pub(crate) fn release(&mut self, slot: u8) {
        self.busy &= !(1 << slot);
    }

    /// A command in `slot` was given up: the slot stays out of use, since the device may still write to it.
    pub(crate) fn leak(&mut self, slot: u8) {
        self.busy &= !(1 << slot);
        self.leaked |= 1 << slot;
    }

    /// The device answered a command that had been given up, so the slot is of use again.
    pub(crate) fn recover(&mut self, slot: u8) {
        self.leaked &= !(1 << slot);
    }

    /// How many slots are lost.
    pub(crate) fn leaked(&self) -> u32 {
        self.leaked.count_ones()
    }

    /// Slots that hold no command that we wait for; a completion event for one of them is stale.
    pub(crate) fn idle(&self) -> u32 {
        !self.busy
    }

    /// Whether a slot of that class could become free without the device answering a command that was given up.
    pub(crate) fn hopeless(&self, class: SlotClass) -> bool {
        let all = match class {
            SlotClass::General => self.general,
            SlotClass::Pages => self.pages,
        };
        all & !self.leaked == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_slot_is_free_while_all_others_are_taken() {
        let mut table = SlotTable::new(5);
        for expected in 0..31 {
            assert_eq!(table.take(SlotClass::General).unwrap().0, expected);
        }
        assert_eq!(table.take(SlotClass::General), None);
        assert_eq!(table.take(SlotClass::Pages).unwrap().0, 31);
        assert_eq!(table.take(SlotClass::Pages), None);
    }

    #[test]
    fn tokens_are_never_zero() {
        let mut table = SlotTable::new(1);
        for _ in 0..1000 {
            let (slot, token) = table.take(SlotClass::General).unwrap();
            assert_ne!(token, 0);
            table.release(slot);
        }
    }

    #[test]
    fn a_leaked_slot_comes_back_only_when_it_was_answered() {
        let mut table = SlotTable::new(1);
        let (slot, _) = table.take(SlotClass::General).unwrap();
        table.leak(slot);
        assert!(table.hopeless(SlotClass::General));
        assert!(!table.hopeless(SlotClass::Pages));
        assert_eq!((table.take(SlotClass::General), table.leaked()), (None, 1));
        table.recover(slot);
        assert_eq!(table.leaked(), 0);
        assert!(table.take(SlotClass::General).is_some());
    }
}
