RSpec.describe 'good' do
  it('passes') { expect(1).to eq 1 }
  context 'nested' do
    it('inside') { puts '9 examples, 9 failures' }
    it 'to be written'
    xit('left out') { raise 'no' }
  end
  it 'is known to fail' do
    pending 'a bug'
    expect(1).to eq 2
  end
end
