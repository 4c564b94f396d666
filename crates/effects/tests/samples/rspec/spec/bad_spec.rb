RSpec.describe 'bad' do
  it('fails') { expect(1).to eq 2 }
  it('raises') { raise 'boom' }
end
