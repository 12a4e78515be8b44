package belljar

// Retained returns copies of what is retained of the output so far: of a running
// execution what was read, of an ended one what is in its result. It is empty
// before Start.
func (c *Cmd) Retained() (stdout, stderr []byte) {
	e := c.execution()
	if e == nil {
		return nil, nil
	}
	e.mu.Lock()
	streams, res := e.streams, e.result
	e.mu.Unlock()
	var out [2][]byte
	if res != nil {
		out = [2][]byte{res.Stdout, res.Stderr}
	}
	for i, s := range streams {
		if s != nil && res == nil {
			out[i] = s.retained()
		}
	}
	return out[0], out[1]
}

// retained copies what is kept; empty once finish has handed it to the result.
func (s *stream) retained() []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.finished {
		return nil
	}
	return s.snapshot()
}
